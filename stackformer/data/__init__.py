"""Text for language modeling: TFDS builders, tokenizers, chunks and masks.

The modules are imported where they are used: `text` (WikiText-2 and Penn Treebank from
a folder of yours), `tokenization` (needs the extra `lm`), `chunks` and `masking`.
"""
