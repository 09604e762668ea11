"""Makes the golden files: tiny GPT-2 and RoBERTa as Hugging Face would save them.

Run once, in an environment of its own, because the project itself needs no torch:

    python -m venv golden && golden/bin/pip install torch==2.13.0 transformers
    golden/bin/python tests/golden/make_golden.py tests/golden

Each folder gets what the hub lays out (config.json, model.safetensors, vocab.json,
merges.txt) plus expected.npz: token ids with the logits that torch computed from them
and, for GPT-2, the mean token loss over chunks of 128 tokens.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

TEXT = """ = The cat and the stack =
 The cat sat on the mat , and the dog lay under the table with the old bone .
 When the <unk> opened the door , the cat that the dog had chased ran to the garden .
 There were 3 @,@ 000 trees in the garden , and the cat knew each of them .
"""


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Gives every parameter, biases and norms too, values that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise)


def tokenizer_files(folder: pathlib.Path, special: list[str], size: int) -> None:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        [TEXT], vocab_size=size, special_tokens=special, show_progress=False
    )
    tokenizer.save_model(str(folder))


def finish(model: torch.nn.Module, folder: pathlib.Path, **arrays) -> None:
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(folder / "expected.npz", **arrays)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (folder / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


def gpt2(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = transformers.GPT2Config(
        vocab_size=300,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    randomise(model, 1)
    tokenizer_files(folder, ["<|endoftext|>"], config.vocab_size)
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, config.vocab_size, (3, 24))
    chunks = rng.integers(0, config.vocab_size, (4, 128))
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).logits.numpy()
        ids = torch.from_numpy(chunks)
        loss = model(ids, labels=ids).loss.item()
    finish(model, folder, tokens=tokens, logits=logits, chunks=chunks, loss=loss)


def roberta(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = transformers.RobertaConfig(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=130,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    torch.manual_seed(3)
    model = transformers.RobertaForMaskedLM(config).eval()
    randomise(model, 4)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer_files(folder, special, config.vocab_size)
    rng = np.random.default_rng(5)
    tokens = rng.integers(5, config.vocab_size, (3, 24))
    tokens[:, 0] = 0
    mask = np.arange(24) < np.array([[24], [17], [6]])
    tokens = np.where(mask, tokens, 1)
    with torch.no_grad():
        logits = model(
            torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask).long()
        ).logits.numpy()
    finish(model, folder, tokens=tokens, mask=mask, logits=logits)


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden")
    gpt2(root / "gpt2")
    roberta(root / "roberta")
