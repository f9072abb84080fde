// A thumbnail of every head, one row per layer. Heads are unpacked when they scroll into view, or at once if there are few
// cells: a printed page may not have been scrolled.

const FEW_CELLS = 2e6; // of all heads together
const SMALL = 152; // side of a thumbnail in pixels: twice its size on the page, for high-resolution screens

function buildOverview() {
  const few = tokens * tokens * about.heads.flat().length <= FEW_CELLS;
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      watcher.unobserve(entry.target);
      drawSmall(entry.target);
    }
  }, {rootMargin: "200px"});
  byId("overview").replaceChildren(...about.layers.map((number, place) => {
    const heads = about.heads[place].map((head, at) => {
      const name = `layer ${number}, head ${head}`;
      const button = make("button", {title: name, "aria-label": name, "data-place": place, "data-head": at, onclick: () => choose(place, at)},
        make("canvas", {width: SMALL, height: SMALL}));
      if (few) drawSmall(button);
      else watcher.observe(button);
      return button;
    });
    return make("div", {class: "layer"}, make("span", {class: "name"}, `layer ${number}`), ...heads);
  }));
}

async function drawSmall(button) {
  const head = await headAt(Number(button.dataset.place), Number(button.dataset.head));
  const context = button.firstChild.getContext("2d");
  context.imageSmoothingEnabled = tokens > SMALL;
  context.imageSmoothingQuality = "high";
  context.drawImage(paint(head, 1), 0, 0, SMALL, SMALL);
}

function markOverview() {
  for (const button of byId("overview").querySelectorAll("button"))
    button.setAttribute("aria-current", Number(button.dataset.place) === state.layer && Number(button.dataset.head) === state.head);
}
