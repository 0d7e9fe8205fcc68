"""Tap: translate while the source is still being read, and hold or commit each word by where its heads look.

The policy is AlignAtt (Papi et al. 2023, arXiv:2305.11408): a target token is committed if the heads for alignment look
before the newest source tokens, else held until more is read. A word that ends the English sentence and begins the
Chinese one (today) comes too late for it: such sentences are left out here.
"""

import torch

import regard
from train_a_small_translator import HELD_OUT, translator

NEWEST = 2  # source tokens at the end of what was read, on which a target token must wait


def listen(loaded, heads, source: list[int]):
    """Yield each committed target token, and how many source tokens were read before it."""
    end, weights = loaded.target_tokenizer.eos_token_id, torch.tensor(heads.weights, dtype=torch.float32)
    target = [loaded.model.config.decoder_start_token_id]
    for read in range(NEWEST, len(source)):
        prefix = torch.tensor([source[:read] + source[-1:]])  # the last token is that of the end
        while len(target) < 40:
            with torch.no_grad(), regard.tap(loaded.model, heads=heads) as tap:
                logits = loaded.model(prefix, decoder_input_ids=torch.tensor([target])).logits
            token, key = int(logits[0, -1].argmax()), (weights @ tap.rows[-1].weights[0])[:read].argmax()
            if token == end or (read < len(source) - 1 and key >= read - NEWEST):
                break  # hold: read on
            target.append(token)
            yield token, read


if __name__ == "__main__":
    model, alignment = translator()
    for english, _ in [pair for pair in HELD_OUT if "day" not in pair[0]][:6]:
        ids = model.tokenizer(english)["input_ids"]
        found = [(model.target_tokenizer.decode([token]), read) for token, read in listen(model, alignment, ids)]
        print(english, *(f"{word} {read}/{len(ids) - 1}" for word, read in found))
        assert found[0][1] < len(ids) - 1, "the first word should be committed before the sentence is read"
