"""A model that is judged: likelihood, and on the storybook the exact floor and validity."""
