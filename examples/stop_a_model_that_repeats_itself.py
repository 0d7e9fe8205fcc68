"""Tap: stop a model that repeats itself, by heads that look at what followed the last time.

An induction head looks from a token to the one that followed its earlier occurrence. While a model writes something
new, these heads rest on the first token; when it repeats its own answer, they look into the answer.
"""

import torch

import regard

HEADS = ["17.3", "17.4", "17.5", "18.6"]  # `regard heads --model smollm2 --sort induction` lists them
LARGE, PATIENCE = 0.2, 8  # this share of their weight in the answer, for so many tokens in a row


def answer(loaded, prompt: str, most: int) -> tuple[str, bool]:
    """Return the greedy answer up to where it begins to repeat itself, and whether it does."""
    ids = torch.tensor([loaded.tokenizer(prompt)["input_ids"]])
    tokens, copied = [], 0
    with regard.tap(loaded.model, heads=HEADS, keys={"answer": (ids.shape[1], None)}) as tap:
        for token, row in tap.stream(ids, max_new_tokens=most, do_sample=False, pad_token_id=0):
            tokens.append(token)
            copied = copied + 1 if row.weights.mean() > LARGE else 0
            if copied == PATIENCE:
                break  # ends the generation
    kept = tokens[:-PATIENCE] if copied == PATIENCE else tokens
    return loaded.tokenizer.decode(kept), copied == PATIENCE


if __name__ == "__main__":
    smollm2 = regard.load_model("smollm2")
    for prompt, most in (("7 8 9 7 8 9 7 8 9", 40), ("I like", 12)):
        text, repeats = answer(smollm2, prompt, most)
        print(f"{prompt} |{text}{' … stopped: the rest repeats' if repeats else ''}")
        assert repeats == (prompt != "I like"), "the heads of this model have changed"
