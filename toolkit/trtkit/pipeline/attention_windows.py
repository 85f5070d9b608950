"""The windows of a model whose layers slide, as TensorRT-LLM's runtime must be told them. Knows shapes, no parameter.

The checkpoint and the engine do not carry them (CONV-WINDOW): without them every layer attends to the whole sequence.
"""

from trtkit.checkpoints.model_spec import ModelSpec


def attention_windows(spec: ModelSpec, longest: int) -> tuple[int, ...]:
    """Tokens that each layer attends to, shortened to what repeats; nothing when no sequence leaves a window.

    longest: tokens of the longest sequence, which is what a layer without a window attends to.
    """
    window = spec.sliding_window
    if window is None or window >= longest or not any(spec.layer_is_sliding):
        return ()
    layers = tuple(window if slides else longest for slides in spec.layer_is_sliding)
    return next(
        layers[:period]
        for period in range(1, len(layers) + 1)
        if all(layer == layers[number % period] for number, layer in enumerate(layers))
    )
