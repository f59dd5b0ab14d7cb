"""CPU seconds of one optimizer step over rows with pictures: the engine's, beside a loop by hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from figures import Figure
from process_usage import cpu_seconds_in_turns
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from picture_steps.pictures import photograph
from picture_steps.rows import END, IMAGE, START, processor_of, rows_with_pictures, write_processor
from rljob_worker.batch import Batch
from rljob_worker.engines.attention.varlen import ATTENTION
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.micro_batch import MicroBatch
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.packing import micro_batches
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.tests.builders import PolicyGradient

CPU = torch.device("cpu")
TOKENS, GROUPS, GROUP_SIZE, SIDE, RESPONSE = 2048, 8, 8, 224, 64
SETTINGS = TrainSettings(tokens_per_micro_batch=TOKENS, learning_rate=1e-6)


def measure(folder: Path, rounds: int) -> list[Figure]:
    path = _write_model(folder / "sized")
    shown = [[photograph(SIDE, seed), 24] for seed in range(GROUPS)]
    processor = processor_of(path)
    batch = rows_with_pictures(shown, GROUP_SIZE, RESPONSE, processor)
    torch.set_num_threads(1)
    steps = {"engine": engine(path, batch), "by hand": by_hand(path, batch)}
    seconds = cpu_seconds_in_turns(steps, rounds)
    for name, result in seconds.items():
        print(f"  {name:8} {statistics.median(result):7.2f} CPU s ({min(result):.2f}-{max(result):.2f})")
    ratios = [theirs / ours for ours, theirs in zip(seconds["engine"], seconds["by hand"], strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"update: by hand / engine {statistics.median(ratios):.2f} ({spread}); held to 0.95")
    return [Figure("update: by hand / engine", statistics.median(ratios), least=0.95)]


def engine(path: str, batch: Batch) -> Callable[[], None]:
    """Reads encoded pictures."""
    model = load_policy(path, torch.float32, CPU)
    reader = PictureReader.of(model, processor_of(path))
    fsdp_engine = FSDPEngine(model, SETTINGS, CPU, reader=reader)
    return lambda: fsdp_engine.update(batch, PolicyGradient()) and None


def by_hand(path: str, batch: Batch) -> Callable[[], None]:
    """Stock modules and whole logits, over packs that are there already, with patches cut and attention planned."""
    model = AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation={"text_config": ATTENTION, "vision_config": "sdpa"}
    )
    tower, decoder = model.model.visual, model.model.language_model
    for parameter in tower.parameters():
        parameter.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, weight_decay=0.0, fused=True)
    packs = _packs(path, batch)

    def loss(rows: MicroBatch, weights: torch.Tensor) -> torch.Tensor:
        embeddings = decoder.get_input_embeddings()(rows.token_ids)
        assert rows.pictures is not None
        with torch.no_grad():
            features = tower(rows.pictures.pixel_values, grid_thw=rows.pictures.grids).pooler_output
        embeddings = embeddings.masked_scatter((rows.token_ids == IMAGE)[..., None], features)
        hidden = decoder(
            inputs_embeds=embeddings, position_ids=rows.positions, use_cache=False, attention_layout=rows.layout
        ).last_hidden_state[0]
        distribution = torch.log_softmax(model.lm_head(hidden[rows.predicts]), -1)
        log_probs = distribution.gather(-1, rows.targets[:, None])[:, 0]
        entropy = -(distribution.exp() * distribution).sum(-1)
        tokens = int(batch["response_ids"].lengths.sum())
        return -(weights * log_probs).sum() / tokens - 0.01 * entropy.sum() / len(batch)

    def step() -> None:
        for rows, weights in packs:
            loss(rows, weights).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _packs(path: str, batch: Batch) -> list[tuple[MicroBatch, torch.Tensor]]:
    """As the engine packs them."""
    model = load_policy(path, torch.float32, CPU)
    reader = PictureReader.of(model, processor_of(path))
    num_tokens = batch.lengths("prompt_ids") + batch.lengths("response_ids")
    starts = np.arange(len(batch)) % GROUP_SIZE == 0
    shared = np.where(starts, 0, batch.lengths("prompt_ids"))
    result = []
    for run in micro_batches(num_tokens, TOKENS, shared):
        weights = batch.column_of("weight", run).values
        advantages = batch.column_of("advantages", run)
        scaled = advantages.values * np.repeat(weights, advantages.lengths)
        result.append((MicroBatch.of(batch, run, CPU, reader=reader), torch.from_numpy(scaled).float()))
    return result


def _write_model(folder: Path) -> str:
    """A Qwen2.5-VL of 10 M parameters, of which 2 M are the tower's."""
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 8192,
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        vision_config={
            "depth": 4,
            "hidden_size": 160,
            "intermediate_size": 480,
            "num_heads": 4,
            "fullatt_block_indexes": [3],
            "out_hidden_size": 256,
        },
        vision_start_token_id=START,
        image_token_id=IMAGE,
        vision_end_token_id=END,
        video_token_id=END + 1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    write_processor(folder, patch_size=14)
    return str(folder)
