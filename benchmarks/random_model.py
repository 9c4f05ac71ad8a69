"""Random models and generated prompts, for timing without downloads."""

from pathlib import Path

from rewards import Score


def reward_tokens(text: str, answer: str) -> Score:
    """Score a completion by its fraction of characters with an even code, which is cheap and
    differs within a group.
    """
    fraction = sum(ord(character) % 2 == 0 for character in text) / max(1, len(text))
    return Score(reward=fraction, correct=fraction > 0.5, breakdown={})


def make_prompts(count: int, length: int, words: int) -> list[str]:
    """Return ``count`` different prompts of ``length`` words each, from w1 to w``words``."""
    return [
        " ".join(f"w{(7 * i + 3 * j) % words + 1}" for j in range(length)) for i in range(count)
    ]


def save_tokenizer(folder: Path, vocabulary: int, in_prompts: int) -> None:
    """Save a tokenizer whose EOS the model cannot sample, so that no completion ends early.

    Args:
        folder: folder of the model.
        vocabulary: number of tokens of the model.
        in_prompts: number of words in prompts, from w1 on.
    """
    from transformers import AddedToken, Qwen2Tokenizer

    # Qwen2 folders always load as Qwen2Tokenizer, whose BPE would split the words: make them added
    # tokens.
    words = [f"w{i}" for i in range(vocabulary)]
    ids = {word: i for i, word in enumerate([*words, "</s>"])}
    # Only the unknown token may be outside of the embedding.
    tokenizer = Qwen2Tokenizer(vocab=ids, eos_token="</s>", pad_token="w0", unk_token="</s>")
    added = words[1 : in_prompts + 1]
    tokenizer.add_tokens([AddedToken(word, normalized=False, single_word=True) for word in added])
    tokenizer.save_pretrained(folder)


def save_random_model(folder: Path, shape_of: str) -> None:
    """Save a model of a known model's shape with random weights, and its tokenizer.

    Args:
        folder: where to save.
        shape_of: ``tiny`` or a name of `known_models.json`, such as Qwen/Qwen2.5-3B.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainer.policy.architectures import model_size

    size = model_size(shape_of)
    assert size is not None, shape_of
    vocabulary = int(size.settings["vocab_size"])
    ends = {
        "eos_token_id": vocabulary,
        "pad_token_id": 0,
        "bos_token_id": None,
        "max_position_embeddings": 8192,
    }
    shape = AutoConfig.for_model(**{**size.settings, **ends})
    # a single CPU thread would take minutes for 3 billion parameters
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        random_model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    random_model.save_pretrained(folder)
    save_tokenizer(folder, vocabulary, in_prompts=69)
