"""Load an exported folder as its users do, and compute what is compared with the run. Runs in its own process.

Imports transformers and nothing of Lilliput, so that a success depends only on the folder. Called by `comparison` as
    python huggingface_reader.py REQUEST.json OUT
Reads {"folder", "texts", "prompts", "new_tokens"}; writes OUT/answer.json with {"ids", "greedy", "text", "version"} and
OUT/logits-N.safetensors for text N. Owns: nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def read(request: dict[str, Any], out: Path) -> dict[str, Any]:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers import pipeline

    log: Any = transformers.utils.logging
    log.set_verbosity_error()
    log.disable_progress_bar()
    # A pipeline loads AutoModelForCausalLM and AutoTokenizer; trust_remote_code is off by default.
    pipe: Any = pipeline("text-generation", model=request["folder"], dtype=torch.float32, device="cpu")
    tokenizer, model = pipe.tokenizer, pipe.model.eval()
    ids: list[list[int]] = []
    with torch.inference_mode():
        for number, text in enumerate(request["texts"]):
            ids.append(tokenizer(text)["input_ids"])
            inputs = tokenizer(text, return_tensors="pt", truncation=True)  # at the maximum length of the folder
            logits = model(**inputs).logits[0].float().contiguous()
            save_file({"logits": logits}, out / f"logits-{number}.safetensors")
        greedy: list[list[int]] = []
        for prompt, count in zip(request["prompts"], request["new_tokens"], strict=True):
            inputs = tokenizer(prompt, return_tensors="pt")
            if count == 0:
                greedy.append([])
                continue
            settings = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
            whole = model.generate(**inputs, max_new_tokens=count, **settings)
            greedy.append(whole[0, inputs["input_ids"].shape[1] :].tolist())
    sample = pipe(request["prompts"][0], max_new_tokens=5)[0]["generated_text"]
    return {"ids": ids, "greedy": greedy, "text": sample, "version": transformers.__version__}


if __name__ == "__main__":
    place = Path(sys.argv[2])
    answer = read(json.loads(Path(sys.argv[1]).read_text("utf-8")), place)
    (place / "answer.json").write_text(json.dumps(answer), "utf-8")
