import inspect
import pkgutil

import pytest

STAGE_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"
DEEPSPEED = "trainer/parallel/deepspeed.py"

# what a library keeps private -> the file that needs it
PRIVATE = {
    "accelerate.state:AcceleratorState._reset_state": "trainer/parallel/ranks.py",
    "accelerate.state:GradientState._reset_state": "trainer/parallel/ranks.py",
    "deepspeed.ops:__compatible_ops__": DEEPSPEED,
    "deepspeed.runtime.zero.parameter_offload:FWD_MODULE_STACK": DEEPSPEED,
    "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator": (
        DEEPSPEED
    ),
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.update_lp_params": DEEPSPEED,
    f"{OFFLOAD}._register_deepspeed_module": DEEPSPEED,
    f"{STAGE_3}._reassign_or_swap_out_partitioned_parameters": DEEPSPEED,
    f"{STAGE_3}.checkpoint_event_epilogue": DEEPSPEED,
    "torch.distributed.distributed_c10d:_get_default_store": "trainer/api.py",
    "torch:_softmax_backward_data": "trainer/cpu/packed_rows.py",
    "transformers:PreTrainedModel._init_weights": "trainer/policy/load.py",
}

# a class -> attributes that its objects have
ATTRIBUTES = {
    STAGE_3: (
        "fp16_groups",
        "fp32_partitioned_groups_flat",
        "parameter_offload",
        "persistent_parameters",
    ),
    OFFLOAD: ("forward_hooks", "backward_hooks"),
    "torch.nn:Module": ("_non_persistent_buffers_set",),
    "transformers:PreTrainedConfig": ("_attn_implementation",),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_what_a_library_keeps_private_and_training_needs_is_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(f"there is no {name} any more: give {PRIVATE[name]} another way")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_objects_have_the_attributes_that_training_needs(name):
    source = inspect.getsource(pkgutil.resolve_name(name))
    for attribute in ATTRIBUTES[name]:
        assert attribute in source, f"{name} has no {attribute} any more"
