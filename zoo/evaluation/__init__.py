"""Exact evaluation of embeddings on NumPy, and of models on data sets.

These are all keys of an evaluation. The group `retrieval` is always measured: means over the queries that have a
relative, each query left out of its own neighbours by index. R is the number of a query's relatives, P(i) the precision
of its first i neighbours, rel(i) = 1 if the i-th is a relative, else 0, and r_1 < ... < r_R are the relatives' ranks.

    recall_at_K                 1 if one of the first K neighbours is a relative    (Jegou et al. 2011; the field's R@K)
    precision_at_1              P(1)
    r_precision                 P(R)                                                  (Reality, section 3.2)
    map_at_r                    1/R sum_{i <= R} P(i) rel(i)                          (Reality, section 3.2)

Group `ranking`: means over the same queries, of the whole ranking.

    mrr                         1 / r_1
    map                         1/R sum_i P(r_i), the average precision of the whole ranking
    map_at_1000                 the same over ranks up to 1000, still divided by R
    map_by_class                P(n), n the class's samples: R and the query, so that 1 cannot be reached; the mean is
                                over the classes' means                               (Revisiting, appendix A.3, mAP)
    map_at_r_query_counted      1/(R+1) sum_{i <= R+1} P(i) rel(i), only to compare with published numbers: the query is
                                counted among its relatives but never found; at best R / (R+1)     (code of Revisiting)
    map_at_1000_query_counted   1/(R+1) sum_{i <= 1000} P(i) rel(i), likewise                      (code of Revisiting)

Group `clustering`: k-means of unit rows with as many clusters as the measured split has classes.

    nmi                         normalised mutual information of clusters and classes
    nmi_random                  NMI of random embeddings, for comparison: nmi rises with the number of classes
    ami                         mutual information adjusted for chance
    f1_clusters                 F1 of "same cluster" as a prediction of "same class", over pairs   (code of Revisiting)
    f1_neighbours               mean over queries of F1 of the first k neighbours, k the mean R    (paper of Revisiting)

Group `structure`: of unit rows, measured on training data in Revisiting (`--split train`).

    intra_class_distance        mean Euclidean distance within a class, over classes  (Revisiting, section 5)
    inter_class_distance        mean Euclidean distance between two classes' means    (Revisiting, section 5)
    intra_inter_ratio           the first divided by the second, its pi_ratio
    intra_class_cosine_distance, inter_class_cosine_distance, intra_inter_cosine_ratio
                                the same three with 1 - cosine                        (code of Revisiting)
    spectral_decay              KL(U || S) of the singular values, in nats            (Revisiting, section 5)
    spectral_decay_drop_1       without the largest singular value                    (code of Revisiting)
    spectral_decay_by_class     mean over classes of each class's own                 (Revisiting, appendix C)
    alignment                   mean squared distance to a relative                   (Wang and Isola 2020)
    uniformity                  log of the mean of exp(-2 |x - y|^2)                  (Wang and Isola 2020)

Group `verification`: over 200,000 sampled pairs of one class and as many of two classes, balanced over classes.

    tar_at_far_0.1, _0.01, _0.001   true accept rate at that false accept rate
    eer                         equal error rate
    roc_auc                     area under the ROC curve

Only retrieval and ranking have intervals. Revisiting is Roth et al. 2020, Revisiting Training Strategies and
Generalization Performance in Deep Metric Learning; Reality is Musgrave et al. 2020, A Metric Learning Reality Check.
"""

from zoo.evaluation.clustering import clustering_metrics
from zoo.evaluation.evaluate import evaluate
from zoo.evaluation.knn import nearest_neighbours
from zoo.evaluation.retrieval import PerQuery, per_query, ranking_metrics, retrieval_metrics
from zoo.evaluation.statistics import intervals_over_classes
from zoo.evaluation.structure import structure_metrics
from zoo.evaluation.verification import verification_metrics
from zoo.models.results import Evaluation

__all__ = [
    "Evaluation",
    "PerQuery",
    "clustering_metrics",
    "evaluate",
    "intervals_over_classes",
    "nearest_neighbours",
    "per_query",
    "ranking_metrics",
    "retrieval_metrics",
    "structure_metrics",
    "verification_metrics",
]
