from benchmarks.random_model import make_prompts, save_random_model
from trainer.config.model import ModelConfig
from trainer.policy.architectures import model_size
from trainer.policy.load import load_tokenizer
from trainer.policy.vocabulary import check_prompts, check_vocabulary, end_token_ids


def test_a_run_accepts_the_random_model_and_cannot_sample_its_end(tmp_path):
    save_random_model(tmp_path, "tiny")
    model = ModelConfig(name_or_path=str(tmp_path))
    tokenizer = load_tokenizer(model)
    rows = model_size("tiny").settings["vocab_size"]
    check_vocabulary(tokenizer, rows, model.name_or_path)
    check_prompts([tokenizer(text)["input_ids"] for text in make_prompts(4, 32, 60)], rows)
    assert tokenizer.eos_token_id >= rows
    assert end_token_ids(model) == ()
