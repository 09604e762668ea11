"""GPT-2 and RoBERTa from and to Hugging Face folders; no torch, no pickle."""

from stackformer.models.huggingface.pretrained import load_pretrained, save_pretrained

__all__ = [
    "load_pretrained",
    "save_pretrained",
]
