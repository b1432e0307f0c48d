"""`zoo distill`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from zoo.cli import strict
from zoo.cli.command import Command, always

if TYPE_CHECKING:
    from training.distilling.distil import Distilled
    from training.distilling.fidelity import Score
    from training.distilling.pictures import Pictures
    from training.distilling.student import Student

WHO = {"teacher": "teacher", "student": "student", "cross": "student in the teacher's gallery"}


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("teacher", help="the model to learn from: its name, or the path of a model folder")
    parser.add_argument(
        "images",
        nargs="?",
        metavar="DIR",
        help="a folder of images, or a table of them (CSV: image and, where there are such, label,split); with labels "
        "or without",
    )
    parser.add_argument("--backbone", required=True, metavar="NAME", help="the student's: conv4, resnet18, any of timm")
    parser.add_argument("--as", dest="rename", metavar="NAME", help="the student's name (default: TEACHER-distilled)")
    parser.add_argument("--loss", default="embedding", help="embedding (default), rkd or similarity; see below")
    parser.add_argument("--dim", type=int, metavar="N", help="of the student's embedding (default: the teacher's)")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="of the student's images (default: the teacher's)")
    parser.add_argument(
        "--pretrained", metavar="WEIGHTS", help="what it starts from: true (timm's), a model, a file or org/name"
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="change the recipe; repeatable"
    )
    parser.add_argument("--dataset", help="a data set by name, instead of a folder or table")
    parser.add_argument("--data", metavar="DIR", help="where that data set lies (default: ZOO_DATA, else downloaded)")
    parser.add_argument(
        "--test-share", type=float, default=0.2, metavar="S", help="of a folder or table, to measure on (default: 0.2)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the training (default: 0)")
    parser.add_argument("--replace", action="store_true", help="the student takes the place of a model of its name")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    strict.configure(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def _run(args: Namespace) -> int:
    from training.derived import derived_name
    from training.distilling.pictures import check_source
    from training.distilling.student import check_student
    from training.finetuning.pictures import check_share
    from zoo.console import print_json
    from zoo.errors import UsageError
    from zoo.loading import find

    name = derived_name(args.rename, args.teacher, "distilled")
    if args.seed < 0:
        raise UsageError(f"--seed is 0 or more, not {args.seed}.")
    check_source(args.images, args.dataset, args.data)
    check_share(args.test_share)
    student = _student(args, name)
    check_student(student, find(args.teacher), args.replace)
    from training.distilling.distil import distil  # torch, not before the arguments were looked at

    made = distil(args.teacher, lambda: _pictures(args), student, args.device, args.replace, not args.quiet)
    if args.json:
        print_json(made.to_json())
    else:
        _print(made)
    return strict.status(args, made.pictures.unreadable)


def _student(args: Namespace, name: str) -> Student:
    from training.distilling.student import Student

    named = {None: False, "false": False, "true": True}
    pretrained = named.get(args.pretrained, args.pretrained)
    return Student(name, args.backbone, args.loss, args.dim, args.size, pretrained, tuple(args.settings), args.seed)


def _pictures(args: Namespace) -> Pictures:
    from training.distilling.pictures import read_dataset, read_pictures

    if args.dataset is not None:
        return read_dataset(args.dataset, args.data, args.seed)
    return read_pictures(args.images, args.test_share, args.seed, not args.quiet)


def _print(made: Distilled) -> None:
    from training.derived import say_what_next
    from zoo.console import note, print_table

    pictures, fidelity = made.pictures, made.fidelity
    for source, reason in pictures.unreadable.items():
        note(f"left out, cannot be read: {source}: {reason}")
    kind = f" of {len(pictures.test.classes)} classes" if pictures.labelled else ", without labels"
    print(
        f"learnt from {made.teacher.name} on {len(pictures.train):,} images in {made.outcome.seconds:.0f} s; measured "
        f"on {len(pictures.test):,} others{kind}"
    )
    if made.seen:
        print(f"{len(made.seen)} of these classes the teacher was finetuned on: the scores flatter both")
    searchers = [who for who in WHO if any(who in scores for scores in fidelity.retrieval.values())]
    if searchers:
        rows = [[metric, *(_cell(scores[who]) for who in searchers)] for metric, scores in fidelity.retrieval.items()]
        print_table(("metric", *(WHO[who] for who in searchers)), rows)
    near = [[f"share of the teacher's {fidelity.k} nearest images that it finds too", _cell(fidelity.neighbours)]]
    if fidelity.cosine is not None:
        near.append(["cosine to the teacher's embedding", _cell(fidelity.cosine)])
    print_table(("student beside teacher", "mean (95 %)"), near)
    say_what_next(made.outcome.name, made.outcome.folder)


def _cell(score: Score) -> str:
    return f"{score.value:.4f} ({score.low:.4f} to {score.high:.4f})"


COMMAND = Command(
    summary="make a small model that embeds as a strong one does, from images without labels",
    configure=_configure,
    run=_run,
    examples="""\
  zoo distill dinov2-s14 pictures/ --backbone mobilenetv3_small_100 --pretrained true --size 128 --as small
  zoo distill margin-conv4-glyphs --dataset glyphs --backbone conv4 --set backbone.args.widths=[8,16,24,32] --as tiny
  zoo distill MODEL pictures/ --backbone resnet18 --loss rkd --dim 64    fewer dimensions than the teacher has
  zoo distill MODEL pictures/ --backbone resnet18 --set schedule.epochs=100 --json
  zoo distill MODEL birds.csv --backbone resnet18           a table: image and, where there are labels, label

losses: embedding: the teacher's own embeddings (same dimension; the student can search rows that the teacher made);
rkd: its distances and angles; similarity: its similarities in a batch. Their arguments, as JSON:
--set 'objective.method_args.transfer_args={"temperature": 0.1}'

Student and teacher see the same augmented views, each in its own size; the teacher runs at every step. Labels are not
needed. A share of the images is held out to measure on: of the classes, where all lie in folders named as theirs, or
all rows of the table have a label; the folders train and test, the column split, or a data set's splits are taken as
they are. The same command goes on where it was stopped; longer schedules bring the student nearer.
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
    resumes=always,
)
