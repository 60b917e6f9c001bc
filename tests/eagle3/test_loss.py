"""The loss against examples by hand and against a slow, plain reference written from the paper."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3.attention import attend
from eagle3.draft import Draft, llama_config
from eagle3.features import Target
from eagle3.loss import Batch, training_time_test
from tests.eagle3.conftest import VOCAB

H = 32
DRAFT_IDS = torch.arange(0, VOCAB, 2)


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    loaded = Target(target_folder, None, torch.device("cpu"))
    loaded.model.double()
    return loaded


@pytest.fixture
def draft(target: Target) -> Draft:
    made = Draft(llama_config(target.config, len(DRAFT_IDS))).double()
    made.start_from(target.head[DRAFT_IDS], target.final_norm, seed=1)
    with torch.no_grad():
        for parameter in made.parameters():  # no special start, so that nothing cancels out
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return made


def batch(lengths: list[int], masks: list[list[int]] | None = None, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    answers = [(torch.arange(length) >= length // 3).long() for length in lengths]
    return Batch(
        ids=torch.randint(0, VOCAB, (total,), generator=generator),
        mask=torch.cat([torch.tensor(m) for m in masks] if masks else answers),
        aux=torch.randn(total, 3 * H, generator=generator, dtype=torch.float64),
        last=torch.randn(total, H, generator=generator, dtype=torch.float64),
        lengths=lengths,
    )


def one_of(data: Batch, number: int) -> Batch:
    start = sum(data.lengths[:number])
    part = slice(start, start + data.lengths[number])
    return Batch(data.ids[part], data.mask[part], data.aux[part], data.last[part], [data.lengths[number]])


def rotate(x: Tensor, position: int) -> Tensor:
    """Rotary embedding of one head vector [D] at a position, written from its definition."""
    half = x.numel() // 2
    out = torch.empty_like(x)
    for i in range(half):
        angle = position * 10000.0 ** (-2 * i / x.numel())
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
    return out


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean() + 1e-6)


def reference(draft: Draft, b: Batch, embedding: Tensor, head: Tensor, steps: int, weight: float) -> Tensor:
    """The training-time test as loops over samples, positions, heads and keys."""
    layer, attn = draft.midlayer, draft.midlayer.self_attn
    total = torch.zeros((), dtype=torch.float64)
    heads, kv_heads = draft.config.num_attention_heads, draft.config.num_key_value_heads
    for one in (one_of(b, number) for number in range(len(b.lengths))):
        ids, mask = one.ids.tolist(), one.mask.tolist()
        length = len(ids)
        hidden = [draft.fc.weight @ one.aux[t] for t in range(length)]
        cache: list[list[tuple[Tensor, Tensor]]] = []
        for k in range(steps):
            inputs, keys = [], []
            for t in range(length):
                token = ids[t + 1 + k] if t + 1 + k < length else 0
                x = torch.cat(
                    [
                        norm(embedding[token], layer.input_layernorm.weight),
                        norm(hidden[t], layer.hidden_norm.weight),
                    ]
                )
                inputs.append(x)
                key = (attn.k_proj.weight @ x).view(kv_heads, -1)
                value = (attn.v_proj.weight @ x).view(kv_heads, -1)
                keys.append((torch.stack([rotate(h, t + k) for h in key]), value))
            cache.append(keys)
            new = []
            for t in range(length):
                query = (attn.q_proj.weight @ inputs[t]).view(heads, -1)
                seen = [cache[0][j] for j in range(t + 1)] + [cache[step][t] for step in range(1, k + 1)]
                mixed = []
                for h in range(heads):
                    group = h * kv_heads // heads
                    q = rotate(query[h], t + k)
                    scores = torch.stack([q @ key[group] / math.sqrt(attn.head_dim) for key, _ in seen])
                    share = scores.softmax(0)
                    mixed.append(sum(share[j] * value[group] for j, (_, value) in enumerate(seen)))
                after = hidden[t] + attn.o_proj.weight @ torch.cat(mixed)
                y = norm(after, layer.post_attention_layernorm.weight)
                gate = torch.nn.functional.silu(layer.mlp.gate_proj.weight @ y)
                new.append(after + layer.mlp.down_proj.weight @ (gate * (layer.mlp.up_proj.weight @ y)))
            hidden = new
            for t in range(length):
                if t + 2 + k < length and mask[t + 2 + k] == 1:
                    log_q = (draft.lm_head.weight @ norm(hidden[t], draft.norm.weight)).log_softmax(0)
                    p = (head @ one.last[t + 1 + k]).softmax(0)
                    total = total - weight**k * (p * log_q).sum()
    return total


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_loss_and_gradients_equal_the_reference(draft: Draft, target: Target, steps: int) -> None:
    two_answers = [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    data = batch([13, 6, 4], [two_answers, [0, 0, 1, 1, 1, 1], [1, 1, 1, 1]])
    head = target.head[DRAFT_IDS]
    ours = training_time_test(draft, data, target.embedding, head, DRAFT_IDS, steps, 0.8).loss
    ours.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}
    draft.zero_grad()
    plain = reference(draft, data, target.embedding, head, steps, 0.8)
    plain.backward()  # type: ignore[no-untyped-call]
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=1e-5)
    assert set(gradients) == {name for name, _ in draft.named_parameters()}
    for name, parameter in draft.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_six_tokens_by_hand(draft: Draft, target: Target) -> None:
    """Ids a b | C D E F with the answer C D E F. Position t of step k reads t+1+k and predicts t+2+k.

    Step 0 predicts C (from a), D, E, F: four labels. Step 1: D, E, F. Step 2: E, F. The answer's first token counts.
    """
    data = batch([6], [[0, 0, 1, 1, 1, 1]])
    sums = training_time_test(draft, data, target.embedding, target.head[DRAFT_IDS], DRAFT_IDS, 3, 0.8)
    assert sums.labels.tolist() == [4, 3, 2]


def test_the_mask_is_that_of_the_predicted_token(draft: Draft, target: Target) -> None:
    """With one supervised token, only the distribution before it matters, and what is read after it does not."""
    data = batch([8], [[0, 0, 0, 0, 0, 1, 0, 0]])
    head = target.head[DRAFT_IDS]

    def loss(changed: Batch) -> float:
        return float(
            training_time_test(draft, changed, target.embedding, head, DRAFT_IDS, 1, 0.8).loss.detach()
        )

    before = loss(data)
    for position in range(8):
        last = data.last.clone()
        last[position] += 1.0
        changed = loss(replace(data, last=last)) != before
        assert changed == (position == 4), "the target's distribution after reading token 4 predicts token 5"
        aux = data.aux.clone()
        aux[position] += 1.0
        assert (loss(replace(data, aux=aux)) != before) == (position <= 3)
        ids = data.ids.clone()
        ids[position] = (ids[position] + 1) % VOCAB
        assert (loss(replace(data, ids=ids)) != before) == (1 <= position <= 4)


def test_samples_in_a_batch_do_not_see_each_other(draft: Draft, target: Target) -> None:
    both, head = batch([9, 3, 6]), target.head[DRAFT_IDS]

    def loss(b: Batch) -> float:
        return float(training_time_test(draft, b, target.embedding, head, DRAFT_IDS, 3, 0.8).loss.detach())

    alone = [loss(one_of(both, i)) for i in range(3)]
    assert loss(both) == pytest.approx(sum(alone), rel=1e-6)


@pytest.mark.parametrize("places", [[0], [2, 3, 6], [0, 1, 2, 3, 4], [0, 1, 2, 6, 7, 8, 9, 11, 12]])
def test_attention_block_by_block_is_the_same_to_the_gradient(places: list[int]) -> None:
    generator = torch.Generator().manual_seed(len(places))
    shapes = [(4, len(places), 8), *[(2, 13, 8)] * 2, *[(2, len(places), 8)] * 4]
    q, k, v, *own = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes
    )
    found = []
    for block in (1 << 20, 4):
        out = attend(q, torch.tensor(places), (k, v), [(own[0], own[1]), (own[2], own[3])], block=block)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [q, k, v, *own])])
    for whole, blocks in zip(*found, strict=True):
        torch.testing.assert_close(blocks, whole)


def test_steps_are_weighted_and_counted(draft: Draft, target: Target) -> None:
    data, head = batch([12]), target.head[DRAFT_IDS]

    def sums(steps: int, weight: float) -> float:
        return float(
            training_time_test(draft, data, target.embedding, head, DRAFT_IDS, steps, weight).loss.detach()
        )

    first, second = sums(1, 1.0), sums(2, 1.0) - sums(1, 1.0)
    assert sums(2, 0.5) == pytest.approx(first + 0.5 * second)
