"""SRPO's rewards of episodes that failed: how near their videos come to those that succeeded at the same task.

An episode that succeeds gets 1. One that fails gets a part of it by the distance d of the embedding of its video to the
nearest centre of clusters of the task's successes in the batch:

    MinMaxSigmoid    scale · σ(10 (0.5 - d'))    d' = (d - min d) / (max d - min d) over the task's failures, 0.5 where
                                                 they differ by less than 1e-6
    Paper            scale · σ(-z)               z = (d - mean d) / std d over the task's failures, 0 where std is below
                                                 1e-6

MinMaxSigmoid with a scale of 0.6 is what siiRL computes. The paper says that distances are normalised within the batch
and squashed; over which episodes, with which steepness and with which divisor of the variance it leaves open: `Paper`
takes the failures of the task, the plain logistic function, and n.

SRPO https://arxiv.org/abs/2511.15605; DBSCAN, Ester et al. 1996.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import ProgressSpec

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

NOISE = -1
"""The cluster of a point that is in none."""
LEAST_SPREAD = 1e-6
"""Distances that differ by less say nothing about one another."""
_STEEPNESS = 10.0


@dataclass(frozen=True, slots=True)
class ProgressRewards:
    """Rewards of a batch of episodes, and how they came about."""

    rewards: Float64
    """[episodes]"""
    distances: Float64
    """[episodes]: of failures that were compared; NaN of all others."""
    num_tasks: int
    num_plain_tasks: int
    """Tasks with nothing to compare: no failure, or no success with an embedding."""
    num_unclustered_tasks: int
    """Tasks whose successes form no cluster, so that their mean is the centre."""
    num_missing: int
    """Episodes without an embedding."""


def progress_rewards(
    tasks: Int64,
    success: Flags,
    embeddings: NDArray[np.floating[Any]],
    has_embedding: Flags,
    options: ProgressSpec,
) -> ProgressRewards:
    """Rewards of all episodes of a batch.

    tasks: [episodes], equal numbers for equal tasks. success: [episodes]. embeddings: [episodes, dimensions], of which
    only those count that `has_embedding` [episodes] names; whatever they are, a task's are compared in float64.
    """
    rewards = success.astype(np.float64)
    if options.missing == "Zero":
        rewards[~has_embedding] = 0.0
    distances = np.full(len(tasks), np.nan)
    names = np.unique(tasks)
    num_plain = num_unclustered = 0
    for task in names:
        here = (tasks == task) & has_embedding
        successes, failures = np.flatnonzero(here & success), np.flatnonzero(here & ~success)
        if not len(successes) or not len(failures):
            num_plain += 1
            continue
        good, bad = (embeddings[at].astype(np.float64) for at in (successes, failures))
        centres, is_clustered = cluster_centres(good, options.eps, options.min_samples)
        num_unclustered += not is_clustered
        distances[failures] = _nearest(bad, centres)
        rewards[failures] = _of_distances(distances[failures], options)
    num_missing = int((~has_embedding).sum())
    return ProgressRewards(rewards, distances, len(names), num_plain, num_unclustered, num_missing)


def cluster_centres(points: Float64, radius: float, min_points: int) -> tuple[Float64, bool]:
    """Means of the clusters of points [points, dimensions], and whether there are any; without, the mean of all points.

    Points are compared after every dimension has mean 0 and variance 1 over them (a dimension that does not vary stays
    0); centres are those of the points as they are. Returns [centres, dimensions].
    """
    spread = points.std(axis=0)
    scaled = (points - points.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    clusters = density_clusters(scaled, radius, min_points)
    if (clusters == NOISE).all():
        return points.mean(axis=0, keepdims=True), False
    return np.stack([points[clusters == cluster].mean(axis=0) for cluster in range(clusters.max() + 1)]), True


def density_clusters(points: Float64, radius: float, min_points: int) -> Int64:
    """The cluster of each point by DBSCAN, int64 [points] from 0 on, or NOISE.

    A point with `min_points` within `radius`, itself among them, is a core point; core points within `radius` of one
    another are of one cluster, and so is what lies within `radius` of one, of the first such cluster. points:
    [points, dimensions].
    """
    near = _squared_distances(points, points) <= radius * radius
    is_core = near.sum(axis=1) >= min_points
    clusters = np.full(len(points), NOISE)
    number = 0
    for start in np.flatnonzero(is_core):
        if clusters[start] != NOISE:
            continue
        front = np.zeros(len(points), np.bool_)
        front[start] = True
        while front.any():
            clusters[front] = number
            front = near[front & is_core].any(axis=0) & (clusters == NOISE)
        number += 1
    return clusters


def _nearest(points: Float64, centres: Float64) -> Float64:
    """Euclidean distance to the nearest centre, [points]."""
    by_centre = [np.sqrt(((points - centre) ** 2).sum(axis=1)) for centre in centres]
    return np.asarray(np.min(by_centre, axis=0), np.float64)


def _of_distances(distances: Float64, options: ProgressSpec) -> Float64:
    if options.form == "Paper":
        spread = distances.std()
        score = (distances.mean() - distances) / spread if spread >= LEAST_SPREAD else np.zeros(len(distances))
    else:
        low, width = distances.min(), np.ptp(distances)
        relative = (distances - low) / width if width >= LEAST_SPREAD else np.full(len(distances), 0.5)
        score = _STEEPNESS * (0.5 - relative)
    return np.asarray(options.scale * np.exp(-np.logaddexp(0.0, -score)), np.float64)


def _squared_distances(points: Float64, others: Float64) -> Float64:
    """[points, others], by the product of the two: of 1,408 dimensions there is no room for all differences."""
    lengths = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    return np.asarray(np.maximum(lengths - 2.0 * points @ others.T, 0.0), np.float64)
