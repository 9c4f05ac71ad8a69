from types import SimpleNamespace

from trainer.rollouts.vllm.output import repack_output_embedding


def test_where_there_is_no_packed_copy_nothing_is_done():
    plain = SimpleNamespace(quant_method=SimpleNamespace(process_weights_after_loading=None))
    repack_output_embedding(SimpleNamespace(lm_head=plain))
    repack_output_embedding(SimpleNamespace(lm_head=None))
    repack_output_embedding(SimpleNamespace())
