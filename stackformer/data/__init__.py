"""Data: text for language modeling, and the frozen test sets of the tasks.

The modules are imported where they are used: `dcf` (frozen test sets as a TFDS
builder), `text` (WikiText-2 and Penn Treebank from
a folder of yours), `tokenization` (needs the extra `lm`), `chunks` and `masking`.
"""
