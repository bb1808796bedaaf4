"""The program that generates text: from checkpoints and from folders of `transformers`, batched, sharded, sampled."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import axonym as nym
from benchmarks.performance.programs import equations

from .test_models import load_whole, read_family


@pytest.fixture(scope="module")
def llama_folder(generate: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    llama = read_family("llama")
    save_file(llama.parameters, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(llama.load.keywords["config"]))
    return folder


LONGEST = 48


def continue_slowly(model: Any, prompts: list[list[int]], steps: int) -> tuple[list[list[int]], np.ndarray]:
    """Returns prompts with greedy continuations by a model without a cache, and the logits of earlier tokens."""
    compute = jax.jit(lambda model, tokens: model(tokens).rearrange(("batch", "pos", "vocab")))
    texts, logits = [[*prompt] for prompt in prompts], np.array([])
    for _ in range(steps):
        rows = np.array([text + [0] * (LONGEST - len(text)) for text in texts], np.int32)
        logits = np.asarray(compute(model, nym.NamedArray(jax.device_put(rows), ("batch", "pos"))).array)
        for text, row in zip(texts, logits, strict=True):
            text.append(int(row[len(text) - 1].argmax()))
    return texts, logits


def test_prompts_of_a_folder_are_continued_together(generate, llama_folder, capsys):
    llama = read_family("llama")
    (tokens,) = llama.inputs
    prompts = tokens.array.tolist()
    prompts[1] = prompts[1][:7]
    options = ["--tokens", "20", "--temperature", "0", "--mesh", "data:4,model:2", "--axis-types", "explicit"]
    with jax.set_mesh(None):
        assert generate.main([str(llama_folder), *(" ".join(map(str, prompt)) for prompt in prompts), *options]) == 0
    shown = [list(map(int, line.split())) for line in capsys.readouterr().out.split("\n\n")]
    expected = [prompt + text for prompt, text in zip(prompts, llama.generated[:, :20].tolist(), strict=True)]
    [expected[1]], _ = continue_slowly(load_whole("llama"), prompts[1:2], 20)
    assert shown == expected


def test_a_run_of_the_training_program_is_continued(generate, tmp_path, capsys):
    train_lm = importlib.import_module("train_lm")
    axes = train_lm.make_axes(1, 1, embed=32, layers=2)
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        model = nym.named_jit(train_lm.Transformer.init, train_lm.PARAMETERS)(axes, key=jax.random.key(0))
        moments = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), model)
        train_lm.open_folder(tmp_path / "run", {"layers": 2, "embed": 32}, resume=False)
        nym.checkpoint.save(tmp_path / "run" / "checkpoints", {"model": model, "optimizer": moments, "step": 3}, 3)
    with jax.set_mesh(None):
        assert generate.main([str(tmp_path / "run"), "The ", "--tokens", "12", "--temperature", "0"]) == 0
    shown = capsys.readouterr().out.removesuffix("\n")
    [expected], _ = continue_slowly(jax.tree.map(np.asarray, model), [[*b"The "]], 12)
    assert shown == bytes(expected).decode(errors="replace").rstrip("\ufffd")


@pytest.mark.parametrize("name", ["transformer", "gpt2", "gemma2", "mixtral"])
def test_a_prompt_has_the_logits_of_its_last_token_alone(generate, name):
    Batch, Pos = nym.make_axes(batch=2, pos=7)
    if name == "transformer":
        transformer = importlib.import_module("transformer")
        axes = transformer.make_axes(1, 1, embed=32, layers=2)
        model, Vocab = jax.eval_shape(lambda: transformer.Transformer.init(axes, key=jax.random.key(0))), axes.vocab
    else:
        family = read_family(name)
        model = jax.eval_shape(lambda: family.load(family.parameters))
        Vocab = model.config.vocab
    tokens = nym.NamedArray(np.zeros((2, 7), np.int32), (Batch, Pos))
    cache = jax.eval_shape(lambda model: model.init_cache(Batch, Pos.alias("key_pos")), model)
    keys = jax.random.split(jax.random.key(0), 2)
    slots = generate.Slots(cache, nym.NamedArray(np.zeros(2, np.int32), Batch), nym.named(keys, Batch))
    programs = [
        jax.make_jaxpr(lambda *inputs: generate.decode_token.__wrapped__(*inputs, None))(model, cache, tokens, keys[0]),
        jax.make_jaxpr(lambda *inputs: generate.continue_texts(*inputs, None))(model, slots, tokens),
    ]
    for program in programs:
        shapes = [variable.aval.shape for equation in equations(program) for variable in equation.outvars]
        assert any(Vocab.size in shape for shape in shapes)
        assert not any({Vocab.size, Pos.size} <= {*shape} for shape in shapes)


def test_sampling_draws_from_the_most_probable_tokens(generate):
    logits = nym.named(jnp.log(jnp.array([0.1, 0.5, 0.25, 0.15])), "vocab").broadcast_axis(nym.Axis("batch", 2000))
    sample = jax.jit(generate.sample_token)

    def share(temperature: float, top_k: int | None, top_p: float) -> np.ndarray:
        drawn = sample(logits, jax.random.key(0), generate.make_sampling(temperature, top_k, top_p))
        return np.bincount(drawn.array, minlength=4) / 2000

    np.testing.assert_allclose(share(1.0, None, 1.0), [0.1, 0.5, 0.25, 0.15], atol=0.05)
    np.testing.assert_allclose(share(1.0, None, 0.7), [0, 2 / 3, 1 / 3, 0], atol=0.05)
    np.testing.assert_allclose(share(1.0, None, 0.3), [0, 1, 0, 0])
    np.testing.assert_allclose(share(0.5, None, 1.0), np.array([1, 25, 6.25, 2.25]) / 34.5, atol=0.05)
    np.testing.assert_allclose(share(0.0, None, 1.0), [0, 1, 0, 0])
    np.testing.assert_allclose(share(1.0, 3, 1.0), np.array([0, 50, 25, 15]) / 90, atol=0.05)
    np.testing.assert_allclose(share(1.0, 1, 1.0), [0, 1, 0, 0])
    np.testing.assert_allclose(share(1.0, 10, 1.0), [0.1, 0.5, 0.25, 0.15], atol=0.05)
    np.testing.assert_allclose(share(1.0, 2, 0.7), np.array([0, 2, 1, 0]) / 3, atol=0.05)
    np.testing.assert_allclose(share(1.0, 2, 0.6), [0, 1, 0, 0])  # of 3/4, the first has 2/3
    with pytest.raises(ValueError, match=r"top-k is positive, .* but they are 1\.0, 0 and 1\.0"):
        share(1.0, 0, 1.0)


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Has an entry for each program that is compiled from now on."""
    events: list[str] = []

    def note(event: str, seconds: float, **_: Any) -> None:
        events.append(event) if event == "/jax/core/compile/backend_compile_duration" else None

    jax.monitoring.register_event_duration_secs_listener(note)
    yield events
    jax.monitoring.unregister_event_duration_listener(note)


def test_a_second_call_compiles_nothing(generate, compiled):
    model = load_whole("llama")

    def continue_texts(seed: int, prompts: list[list[int]], **options: Any) -> list[list[int]]:
        stream = generate.generate_tokens(model, prompts, 3, key=jax.random.key(seed), **options)
        return np.stack(list(stream), 1).tolist()

    with jax.set_mesh(None):
        prompts = [[1, 2, 3], [4, 5]]
        greedy = continue_texts(0, prompts, temperature=1.0, top_k=1, top_p=0.9)
        compiled.clear()
        continue_texts(1, [[7, 8], [9, 6, 5]], temperature=0.5, top_k=3, top_p=0.8)
        assert compiled == []
        assert continue_texts(1, prompts) == greedy
        assert len(compiled) == 2  # the prompts and the tokens after them


def serve_texts(generate: Any, model: Any, prompts: list[list[int]], slots: int, **options: Any) -> Any:
    """Returns the new tokens of all prompts, and their log-probabilities."""
    server = generate.Server(model, slots, longest=8, steps=6, **options)
    for number, prompt in enumerate(prompts):
        assert server.submit(prompt, jax.random.key(number), steps=2 + number) == number
    texts, log_probabilities = [[] for _ in prompts], [[] for _ in prompts]
    while not server.is_idle:
        for served in server.step():
            texts[served.text].append(served.token)
            log_probabilities[served.text].append(served.log_probability)
            assert served.is_last == (len(texts[served.text]) == 2 + served.text)
    return texts, log_probabilities


def test_texts_in_slots_are_those_of_one_prompt_at_a_time(generate):
    model = load_whole("gemma2")  # with a sliding window and without
    prompts = [list(range(1, 1 + length)) for length in (3, 8, 6, 1, 5)]
    with jax.set_mesh(None):
        texts, log_probabilities = serve_texts(generate, model, prompts, 3)
        expected, logits = continue_slowly(model, prompts, 6)
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        assert text == expected[number][len(prompt) :][: 2 + number]
    following = logits[2, 5:9] - np.logaddexp.reduce(logits[2, 5:9], -1, keepdims=True)
    np.testing.assert_allclose(log_probabilities[2], following[np.arange(4), texts[2]], atol=1e-4)


def test_a_drawn_text_depends_on_its_key_and_not_on_its_slot(generate):
    model, prompts = load_whole("llama"), [[5], [5], [8, 9, 1], [3]]
    drawn = {"temperature": 1.0, "top_p": 0.9}
    with jax.set_mesh(None):
        texts, _ = serve_texts(generate, model, prompts, 1, **drawn)
    assert texts[0] != texts[1][:2], "The texts are not drawn."
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types="explicit")
    with jax.set_mesh(mesh), nym.axis_mapping(generate.MAPPING):
        assert serve_texts(generate, nym.shard(model), prompts, 4, **drawn)[0] == texts


def test_a_hundred_arrivals_compile_nothing(generate, compiled):
    random = np.random.default_rng(0)
    transformer = importlib.import_module("transformer")
    with jax.set_mesh(None):
        model = nym.named_jit(transformer.Transformer.init)(transformer.make_axes(1, 1, 8, 1), key=jax.random.key(0))
        server = generate.Server(model, 8, longest=16, steps=4, ends=(7,))
        for length in (8, 16):
            server.submit([0] * length)
        server.step(), server.step()
        compiled.clear()
        ended = 0
        while server.submitted < 100 or not server.is_idle:
            for _ in range(min(random.poisson(2.5), 100 - server.submitted)):
                server.submit(random.integers(0, 256, random.integers(1, 17)).tolist(), steps=random.integers(1, 5))
            ended += sum(served.is_last for served in server.step())
        with pytest.raises(ValueError, match="1 to 16 tokens and is continued by 1 to 4, but it has 17 and"):
            server.submit([0] * 17)
    assert (ended, compiled) == (100, [])


def test_a_text_that_has_ended_stays_as_it_is(generate, capsys):
    tokens = generate.Numbers({"eos_token_id": [9, 10]})
    stream = iter([np.array([1, 9]), np.array([2, 3]), np.array([10, 4]), np.array([5, 6])])
    assert generate.show_stream([[0], [0]], tokens, stream) == ["0 1 2 ", "0 "]
    assert len(list(stream)) == 1, "The program stops after the last text has ended."


def test_characters_of_several_bytes_are_shown_once_complete(generate, capsys):
    stream = (np.array([byte]) for byte in "aü€".encode())
    assert generate.show_stream([list(b"> ")], generate.Bytes(), stream) == ["> aü€"]
    assert capsys.readouterr().out == "> aü€\n"


def test_texts_are_encoded_by_the_tokenizer_of_the_folder(generate, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="it comes with `make parity`")
    words = tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokens = generate.HuggingFaceTokens(tmp_path, {"eos_token_id": 2})
    assert (tokens.encode("world hello there"), tokens.decode([0, 1]), tokens.ends) == ([1, 0, 2], "hello world", (2,))


def test_mistakes_are_one_line(generate, llama_folder, tmp_path, capsys):
    def complain(*argv: str) -> str:
        with jax.set_mesh(None):
            assert generate.main([*argv, "--tokens", "2"]) == 2
        return capsys.readouterr().err.strip()

    for options in ((), ("--slots", "1")):
        assert complain(str(llama_folder), " ", *options) == "generate: a prompt is empty; it needs a token at least"
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    assert complain(str(tmp_path), "1").startswith(f"generate: '{tmp_path}' has neither 'model.safetensors' nor")
    (tmp_path / "config.json").write_text('{"model_type": "gpt9"}')
    assert "is of type 'gpt9'; known are gpt2, llama" in complain(str(tmp_path), "1")
