"""An FP8 checkpoint in Hugging Face's format, for TensorRT-LLM's PyTorch backend. Knows unified scale names, no ranks.

Each linear layer keeps its name and gets, beside `weight` in float8_e4m3fn, the scalars `weight_scale` and
`input_scale`; k_proj.k_scale and v_proj.v_scale where the KV cache is FP8; all are multipliers, max / 448.
hf_quant_config.json says so. The loader fuses layers, and scales, itself. Without a quantization the weights stay as
they are and only the KV scales are added: the cache is FP8 then, with calibrated scales, and nothing else.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trtkit import __version__
from trtkit.artifacts import write_text
from trtkit.checkpoints.quantized import QUANT_FILE
from trtkit.conversion.calibration import NO_CALIBRATION, Calibration, read_calibration
from trtkit.conversion.casting import E4M3_MAX, largest_magnitude
from trtkit.conversion.fp8_encoder import fp8_quantizer, fp8_scale
from trtkit.conversion.hf_files import copy_hf_files
from trtkit.conversion.layout import rules_for
from trtkit.conversion.plain_encoder import PlainEncoder
from trtkit.conversion.plan import ConversionPlan
from trtkit.conversion.rank_file import RankFile, TensorHeader
from trtkit.conversion.rank_writer import WrittenFile
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.source_scales import FP8
from trtkit.conversion.weight_maps import WEIGHT_MAPS
from trtkit.conversion.write_lanes import WriteLanes
from trtkit.errors import InputError
from trtkit.progress import OnProgress, Progress

WEIGHTS_NAME = "model.safetensors"


class HfFp8Writer:
    """Writes the folder for one plan; calibration gives the input scales."""

    def __init__(self, plan: ConversionPlan, calibration: Calibration, source: SourceFiles) -> None:
        self._plan = plan
        self._calibration = calibration
        self._source = source
        rules = rules_for(plan.spec, WEIGHT_MAPS[plan.spec.family])
        patterns = {part.source for rule in rules if rule.kind in ("linear", "expert") for part in rule.parts}
        linear = {name for name in plan.names if _pattern(name) in patterns}
        self._linear = set() if plan.options.only_kv_scales else linear
        if plan.options.only_kv_scales:
            self._refuse_no_scales()
        if plan.spec.family in ("gpt2",):
            raise InputError(
                "TensorRT-LLM's PyTorch backend has no GPT-2",
                "use backend: engine or reference for this model",
                code="CONV-HF-FP8",
            )

    def _refuse_no_scales(self) -> None:
        """Scales are all that would be written: they have to be known, and to have a place."""
        self._calibration.kv_scales(0, "fp8")
        if not any(name.endswith("k_proj.weight") for name in self._plan.names):
            raise InputError(
                f"{self._plan.spec.family} has keys and values in one weight: where their scales belong is not known",
                "use backend: engine for this model, or kv_cache.dtype: auto",
                code="CONV-HF-FP8",
            )

    def headers(self) -> list[TensorHeader]:
        """Every tensor of the file, in order. Raises InputError CONV-CALIBRATION when a scale is not known."""
        return [header for name in self._plan.names for header in self._headers_of(name)]

    def write(self, out: Path, on_progress: OnProgress) -> str:
        """Write model.safetensors and return its CRC-32."""
        with WriteLanes() as lanes:
            file = RankFile(out / WEIGHTS_NAME, self.headers(), lanes)
            try:
                for done, name in enumerate(self._plan.names, start=1):
                    self._write_tensor(name, file)
                    on_progress(Progress("convert", done, len(self._plan.names), "tensors"))
                self._source.check_unchanged()
                return file.finish()
            finally:
                file.abandon()

    def _headers_of(self, name: str) -> Iterator[TensorHeader]:
        stored = self._plan.names[name]
        shape = self._plan.weights[stored].shape
        module = stored.removesuffix(".weight")
        if name not in self._linear:
            yield TensorHeader(stored, self._dtype_of(name), shape)
        else:
            self._calibration.input_scale([module], E4M3_MAX)
            yield TensorHeader(stored, FP8, shape)
            yield TensorHeader(f"{module}.weight_scale", "float32", ())
            yield TensorHeader(f"{module}.input_scale", "float32", ())
        if self._kv_scale(module) is not None:
            yield TensorHeader(f"{module}.{module[-6]}_scale", "float32", ())

    def _write_tensor(self, name: str, file: RankFile) -> None:
        module = self._plan.names[name].removesuffix(".weight")
        if name in self._linear:
            self._write_fp8(name, module, file)
        else:
            encoder = PlainEncoder(self._source, self._dtype_of(name))
            for block in self._source.all_blocks(name):
                file.append(encoder.encoded(block, name))
        kv_scale = self._kv_scale(module)
        if kv_scale is not None:
            file.append(np.array([kv_scale], dtype=np.float32))

    def _dtype_of(self, name: str) -> str:
        """What an unquantised tensor is stored in: the dtype asked for, else its own."""
        asked = self._plan.options.dtype
        return self._plan.weights[self._plan.names[name]].dtype if asked == "auto" else asked

    def _write_fp8(self, name: str, module: str, file: RankFile) -> None:
        """The codes of one weight, its scale and that of its input."""
        dtype = self._source.dtype_of(name)
        largest = max(largest_magnitude(block, dtype) for block in self._source.all_blocks(name))
        if not np.isfinite(largest):
            self._source.non_finite.add(name)
        scale = np.float32(fp8_scale(largest))
        quantize = fp8_quantizer(dtype, float(scale))
        for block in self._source.all_blocks(name):
            file.append(quantize(block))
        input_scale = np.float32(self._calibration.input_scale([module], E4M3_MAX))
        file.append(np.array([scale, input_scale], dtype=np.float32))

    def _kv_scale(self, module: str) -> float | None:
        """k_scale below k_proj and v_scale below v_proj, when the cache is FP8."""
        if self._plan.options.kv_cache_dtype != "fp8" or not module.endswith(("k_proj", "v_proj")):
            return None
        layer = next(int(part) for part in module.split(".") if part.isdecimal())
        return max(self._calibration.kv_scales(layer, "fp8")) if self._calibration.kv_cache else 1.0


def hf_fp8_headers(plan: ConversionPlan, source: SourceFiles) -> list[TensorHeader]:
    """The tensors that write_hf_fp8 will write. Raises InputError CONV-CALIBRATION when a scale is not known."""
    return HfFp8Writer(plan, _calibration(plan), source).headers()


def write_hf_fp8(
    plan: ConversionPlan, source: Path, out: Path, files: SourceFiles, on_progress: OnProgress
) -> WrittenFile:
    """Write the whole folder; returns its one weights file."""
    writer = HfFp8Writer(plan, _calibration(plan), files)
    crc32 = writer.write(out, on_progress)
    _write_metadata(plan, source, out)
    return WrittenFile(WEIGHTS_NAME, (out / WEIGHTS_NAME).stat().st_size, crc32, skipped=False)


def _calibration(plan: ConversionPlan) -> Calibration:
    return read_calibration(plan.options.calibration) if plan.options.calibration else NO_CALIBRATION


def _write_metadata(plan: ConversionPlan, source: Path, out: Path) -> None:
    """hf_quant_config.json, config.json with the dtype asked for, and copies of the tokenizer."""
    if plan.options.dtype != "auto":
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        dtypes = {key: plan.options.dtype for key in ("dtype", "torch_dtype") if key in config}
        write_text(out / "config.json", json.dumps(config | dtypes, indent=2) + "\n")
    copy_hf_files(source, out)
    document = {
        "producer": {"name": "trtkit", "version": __version__},
        "quantization": {
            "quant_algo": None if plan.options.only_kv_scales else "FP8",
            "kv_cache_quant_algo": "FP8" if plan.options.kv_cache_dtype == "fp8" else None,
            "exclude_modules": [] if plan.options.only_kv_scales else ["lm_head", *_routers(plan)],
        },
    }
    write_text(out / QUANT_FILE, json.dumps(document, indent=2) + "\n")


def _routers(plan: ConversionPlan) -> list[str]:
    """Routers and shared expert gates, by the names the checkpoint gives them."""
    gates = (".gate.weight", ".shared_expert_gate.weight")
    return sorted(stored.removesuffix(".weight") for stored in plan.names.values() if stored.endswith(gates))


def _pattern(name: str) -> str:
    """The name with its layer and expert numbers replaced by the weight maps' placeholders."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.isdecimal():
            parts[index] = "{e}" if parts[index - 1] == "experts" else "{i}"
    return ".".join(parts)
