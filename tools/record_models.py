"""Records small random models as `transformers` computes them: `make record-models`.

For each family, `tests/examples/models/<family>.safetensors` gets the parameters of a small random model, its
configuration as `config.json` has it, inputs, the output, the gradients of all parameters and, for models that generate
text, 64 greedy tokens; `rotary.safetensors` gets rotary embeddings. The tests compare with these, without PyTorch.
"""

import argparse
import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


FOLDER = Path(__file__).parents[1] / "tests" / "examples" / "models"
BATCH, POS, NEW_TOKENS, VOCAB = 4, 12, 64, 64


class UnsuitableSeed(Exception):
    """Raised when the text that a random model generates would not tell a correct model from others."""


class Family(NamedTuple):
    """One model: its class and configuration, how inputs are drawn, and the field of the output to compare."""

    model: str
    config: str
    options: dict[str, Any]
    draw_inputs: Callable[[np.random.Generator], dict[str, np.ndarray]]
    output: str = "logits"
    prompt: str | None = "input_ids"  # the input that is continued, None where nothing is generated
    embedding_scale: float = 2.0  # small where it is also the head, and what follows would only repeat a token


def draw_tokens(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {"input_ids": random.integers(0, VOCAB, (BATCH, POS))}


def draw_masked_tokens(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns tokens of two segments, of which the last ones are padding in half of the sequences."""
    positions, rows = np.arange(POS), np.arange(BATCH)[:, None]
    return {
        **draw_tokens(random),
        "attention_mask": (positions < POS - rows).astype(np.int64),
        "token_type_ids": (positions > 5 + rows).astype(np.int64),
    }


def draw_images(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {"pixel_values": random.standard_normal((BATCH, 3, 8, 8), np.float32)}


def draw_speech(random: np.random.Generator) -> dict[str, np.ndarray]:
    features = random.standard_normal((BATCH, 8, 20), np.float32)
    return {"input_features": features, "decoder_input_ids": draw_tokens(random)["input_ids"]}


# Sizes differ wherever two axes could be confused, and are multiples of those of a mesh (data: 4, model: 2).
TEXT = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
DECODER = {
    **TEXT,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
ENCODER = {
    "hidden_size": 36,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SPEECH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 80,
    "decoder_start_token_id": 1,
    "begin_suppress_tokens": None,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {**TEXT, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 80},
        draw_tokens,
    ),
    "llama": Family(
        "LlamaForCausalLM",
        "LlamaConfig",
        {**DECODER, "hidden_size": 36, "rope_parameters": LLAMA_3},
        draw_tokens,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**DECODER, "rope_parameters": YARN, "tie_word_embeddings": True},
        draw_tokens,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {
            **DECODER,
            "hidden_size": 36,
            "query_pre_attn_scalar": 12,
            "sliding_window": 7,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 10.0,
        },
        draw_tokens,
        embedding_scale=0.4,
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        "MixtralConfig",
        {**DECODER, "hidden_size": 36, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
        draw_tokens,
    ),
    "bert": Family("BertForMaskedLM", "BertConfig", {**TEXT, **ENCODER}, draw_masked_tokens, prompt=None),
    "vit": Family(
        "ViTForImageClassification",
        "ViTConfig",
        {**ENCODER, "image_size": 8, "patch_size": 2, "num_labels": 6},
        draw_images,
        prompt=None,
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**TEXT, **SPEECH},
        draw_speech,
        prompt="decoder_input_ids",
    ),
}


def make_model(family: Family) -> Any:
    """Returns the model with all parameters drawn at random, so that biases and the weights of norms matter."""
    config = getattr(transformers, family.config)(**family.options, attn_implementation="eager")
    model = getattr(transformers, family.model)(config).eval().requires_grad_()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = (family.embedding_scale if "embed" in name else 2) * parameter.shape[-1] ** -0.5
            parameter.add_((0.2 if parameter.ndim == 1 else scale) * torch.randn(parameter.shape))
    return model


def compute_output(model: Any, family: Family, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the output, and leaves the gradients of a weighted mean of it in the parameters."""
    output = getattr(model(**inputs), family.output)
    weights = torch.cos(torch.arange(output.numel(), dtype=torch.float32)).reshape(output.shape)
    (output * weights).mean().backward()
    return output.detach()


@torch.no_grad()
def generate_tokens(model: Any, family: Family, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the greedy continuation; it must vary, and no two tokens may be so close that rounding could decide."""
    tokens = inputs[family.prompt or ""]
    for _ in range(NEW_TOKENS):  # without a cache, and without the rules that `generate` has for some models
        logits = model(**{**inputs, family.prompt: tokens}, use_cache=False).logits[:, -1]
        best = logits.topk(2).values
        if (gap := float((best[:, 0] - best[:, 1]).min())) < 3e-4:
            raise UnsuitableSeed(f"two logits differ by {gap:.1e} alone")
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=-1)
    tokens = tokens[:, -NEW_TOKENS:]
    if (fewest := min(len(set(row)) for row in tokens.tolist())) < 6:
        raise UnsuitableSeed(f"a continuation has {fewest} tokens alone")
    return tokens


def make_gradients(model: Any) -> Any:
    """Returns a model whose parameters are the gradients of those of a model."""
    gradients = copy.deepcopy(model)
    for gradient, parameter in zip(gradients.parameters(), model.parameters(), strict=True):
        gradient.data = parameter.grad
    return gradients


def export_parameters(model: Any) -> dict[str, torch.Tensor]:
    """Returns the parameters by their names in files, which may differ from those in the model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def record_family(name: str, seed: int, folder: Path) -> None:
    family = FAMILIES[name]
    torch.manual_seed(seed)
    model = make_model(family)
    inputs = {key: torch.from_numpy(x) for key, x in family.draw_inputs(np.random.default_rng(seed)).items()}
    tensors = {"output": compute_output(model, family, inputs)}
    tensors |= {f"input/{key}": x for key, x in inputs.items()}
    tensors |= {f"parameter/{key}": x for key, x in export_parameters(model).items()}
    tensors |= {f"gradient/{key}": x for key, x in export_parameters(make_gradients(model)).items()}
    if family.prompt is not None:
        tensors["generated"] = generate_tokens(model, family, inputs)
    tensors = {key: x.to(torch.int32) if x.dtype == torch.int64 else x for key, x in tensors.items()}
    config = {**model.config.to_dict(), "architectures": [family.model]}
    file = folder / f"{name}.safetensors"
    metadata = {"config": json.dumps(config), "transformers": transformers.__version__, "seed": str(seed)}
    save_file({key: x.contiguous() for key, x in tensors.items()}, file, metadata)
    print(
        f"{name}: seed {seed}, {sum(x.numel() for x in model.parameters()):,} parameters, {file.stat().st_size:,} bytes"
    )


ROTARY = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},  # from 20 positions on
    "llama3": {**LLAMA_3, "original_max_position_embeddings": 300},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
    "yarn_exact": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 300,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.5,
        "truncate": False,
    },
}


def record_rotary(folder: Path) -> None:
    """Records cosine and sine of rotary embeddings of 16 elements at the positions 0 to 39."""
    tensors = {}
    for name, options in ROTARY.items():
        config = transformers.LlamaConfig(
            hidden_size=32,
            num_attention_heads=2,
            max_position_embeddings=20,
            rope_parameters={"rope_theta": 10000.0, **options},
        )
        rotary = LlamaRotaryEmbedding(config)
        cosine, sine = rotary(torch.zeros(1), torch.arange(40)[None])
        tensors[name] = torch.stack([cosine[0, :, :8], sine[0, :, :8]])
    save_file(tensors, folder / "rotary.safetensors", {"transformers": transformers.__version__})


def main() -> None:
    """Records the families that are named or all, each with the first suitable seed, and rotary embeddings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("families", nargs="*", help=f"some of {', '.join(FAMILIES)}; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="first seed to try; default %(default)s")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    record_rotary(args.out)
    for name in args.families or FAMILIES:
        for seed in range(args.seed, args.seed + 100):
            try:
                record_family(name, seed, args.out)
                break
            except UnsuitableSeed as error:
                print(f"{name}: seed {seed} is unsuitable: {error}")
        else:
            raise SystemExit(f"{name}: no seed is suitable")


if __name__ == "__main__":
    main()
