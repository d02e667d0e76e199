#!/usr/bin/env python3
"""Reads what vendors_main.cc wrote with the vendors' own packages, and compares values.

    read_back.py VENDOR FOLDER [ADDRESS]

Run by ci/vendors.sh, for each vendor by a Python that has the package. Every name, step and value
that the program logged is expected here by the same formula. Prints each difference, or one row of
the table in trackers/README.md: package and version, what read it, and how many values were equal.
"""

import glob
import importlib.metadata
import io
import json
import math
import os
import struct
import sys
import zipfile

STEPS = 5
CONFIG = {"lr": 0.5, "epochs": 3, "nesterov": True, "model": "linear", "adam": {"beta": 0.875}}
LOSS = [(step, 1 / (step + 1)) for step in range(STEPS)]
TOKENS = [(step, step * 100000007) for step in range(STEPS)]
TENSOR = [(step, step / 4) for step in range(STEPS)]
NOTE = "the text of step 6"
WEIGHTS = [single / 10 for single in range(-20, 80)]
TABLE = {"columns": ["name", "value"], "data": [["a", 1], ["b", 2.5]]}

equal = 0
differences = []


def compare(what, got, wanted):
    """Numbers exactly; NaN is equal to nothing."""
    global equal
    if got == wanted:
        equal += len(wanted) if isinstance(wanted, (list, dict)) else 1
    else:
        differences.append(f"{what}: {got!r} and not {wanted!r}")


def compare_near(what, got, wanted):
    """Numbers of float32 and what is computed of them."""
    global equal
    if abs(got - wanted) <= 1e-6 * max(1, abs(wanted)):
        equal += 1
    else:
        differences.append(f"{what}: {got!r} and not {wanted!r}")


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def flat(config, separator):
    """The configuration with nested names joined."""
    result = {}
    for name, value in config.items():
        if isinstance(value, dict):
            result.update({f"{name}{separator}{key}": entry for key, entry in value.items()})
        else:
            result[name] = value
    return result


def compare_picture(what, image, tolerance=0):
    """`image`: Pillow's. Value number n of [C, H, W] is 4 n."""
    compare(f"{what}: size", image.size, (5, 4))
    image = image.convert("RGB")
    worst = max(abs(image.getpixel((x, y))[channel] - 4 * (channel * 20 + y * 5 + x))
                for x in range(5) for y in range(4) for channel in range(3))
    if worst > tolerance:
        differences.append(f"{what}: a pixel differs by {worst}")
    global equal
    equal += 60


def picture_of(path_or_bytes):
    from PIL import Image
    return Image.open(io.BytesIO(path_or_bytes) if isinstance(path_or_bytes, bytes) else path_or_bytes)


def compare_histogram(what, counts, edges):
    """Buckets between `edges`, for whatever buckets: as many values below each edge as there are."""
    compare(f"{what}: values", sum(counts), len(WEIGHTS))
    below = 0
    for count, edge in zip(counts, edges[1:]):
        below += count
        # A value at an edge itself may count on either side.
        least = sum(float32(value) < edge - 1e-5 for value in WEIGHTS)
        most = sum(float32(value) <= edge + 1e-5 for value in WEIGHTS)
        if not least <= below <= most:
            differences.append(f"{what}: {below} values below {edge}, and not {least} to {most}")
    global equal
    equal += len(counts)


def read_tensorboard(folder, _):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import api_pb2, metadata

    def opened(name):
        everything = {kind: 0 for kind in ("scalars", "images", "histograms", "tensors")}
        events = EventAccumulator(name, size_guidance=everything)
        events.Reload()
        return events

    def curve(events, tag):
        return [(event.step, event.value) for event in events.Scalars(tag)]

    events = opened(f"{folder}/vendors")
    compare("tags", sorted(events.Tags()["scalars"]), ["loss", "tensor", "train_tokens"])
    for tag, wanted in (("loss", LOSS), ("train_tokens", TOKENS), ("tensor", TENSOR)):
        compare(tag, curve(events, tag), [(step, float32(value)) for step, value in wanted])
    for name, value in (("train", 0.75), ("test", 0.25)):
        compare(f"split: {name}", curve(opened(f"{folder}/vendors/split_{name}"), "split"), [(5, value)])
    (note,) = events.Tensors("note/text_summary")
    compare("note", (note.step, note.tensor_proto.string_val[0].decode()), (6, NOTE))
    (table,) = events.Tensors("table/text_summary")
    text = table.tensor_proto.string_val[0].decode()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    compare("table", (table.step, cells[0], cells[2:]), (8, ["name", "value"], [["a", "1"], ["b", "2.5"]]))
    (image,) = events.Images("picture")
    compare("picture: step", image.step, 7)
    compare_picture("picture", picture_of(image.encoded_image_string))
    (histogram,) = events.Histograms("weights")
    value = histogram.histogram_value
    compare("weights: step", histogram.step, 9)
    compare("weights: number", value.num, len(WEIGHTS))
    compare_near("weights: minimum", value.min, min(WEIGHTS))
    compare_near("weights: maximum", value.max, max(WEIGHTS))
    compare_near("weights: sum", value.sum, math.fsum(WEIGHTS))
    compare_near("weights: squares", value.sum_squares, math.fsum(weight**2 for weight in WEIGHTS))
    compare_histogram("weights", value.bucket, [-math.inf] + list(value.bucket_limit))

    (session,) = [name for name in glob.glob(f"{folder}/vendors/*/hparams.yml")]
    plugin = opened(os.path.dirname(session))._plugin_to_tag_to_content["hparams"]
    start = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG])
    got = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    compare("hyperparameters", got, flat(CONFIG, "/"))
    end = metadata.parse_session_end_info_plugin_data(plugin[metadata.SESSION_END_INFO_TAG])
    compare("session", end.status, api_pb2.STATUS_SUCCESS)
    return "tensorboard", "EventAccumulator, plug-in hparams", "curves, texts, image, histogram, hyperparameters"


def read_trace(folder, _):
    from torch_tb_profiler.io.cache import Cache
    from torch_tb_profiler.profiler.loader import RunLoader

    with open(f"{folder}/trace/rank0.1.pt.trace.json") as file:
        events = json.load(file)["traceEvents"]
    run = RunLoader("trace", f"{folder}/trace", Cache()).load()
    compare("workers", run.workers, ["rank0"])
    profile = run.get_profile("rank0", run.get_spans("rank0")[0])
    steps = [row[0] for row in profile.overview["steps"]["rows"]]
    compare("steps", steps, [str(step) for step in range(1, STEPS)])
    # The numbers of calls that the plug-in shows are those of the trace.
    calls = {row["name"]: row["calls"] for row in profile.operation_table_by_name["data"]}
    for name in ("aten::addmm", "aten::tanh", "aten::sqrt"):
        count = sum(event.get("name") == name for event in events)
        if count == 0:
            differences.append(f"{name} is not in the trace")
        compare(f"calls of {name}", calls.get(name), count)
    return "torch-tb-profiler", "its loader of traces", "steps, calls of operators"


def read_mlflow_from(client, images):
    (experiment,) = client.search_experiments(filter_string="name = 'vendors'")
    (run,) = client.search_runs([experiment.experiment_id])
    compare("state", run.info.status, "FINISHED")
    compare("params", {name: value for name, value in run.data.params.items()},
            {"lr": "0.5", "epochs": "3", "nesterov": "True", "model": "linear", "adam": "{'beta': 0.875}"})
    for name, wanted in (("loss", LOSS), ("train_tokens", TOKENS)):
        history = client.get_metric_history(run.info.run_id, name)
        compare(name, sorted((metric.step, metric.value) for metric in history), wanted)
    compare("names", sorted(run.data.metrics), ["loss", "train_tokens"])
    if images:
        path = client.download_artifacts(run.info.run_id, "images/picture_step_7_0.png")
        compare_picture("picture", picture_of(path))
        with open(client.download_artifacts(run.info.run_id, "tables/table_step_8.json")) as file:
            compare("table", json.load(file), TABLE)


def read_mlflow(folder, address):
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    read_mlflow_from(MlflowClient(address), images=True)
    read_mlflow_from(MlflowClient(f"file://{folder}/mlruns"), images=True)
    return "mlflow", "MlflowClient, from its server and from `mlruns`", "metrics, params, image, table, state"


def read_wandb(folder, _):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (path,) = glob.glob(f"{folder}/wandb/offline-run-*/run-*.wandb")
    files = os.path.dirname(path) + "/files"
    store = DataStore()
    store.open_for_scan(path)
    rows, config, summary, kinds = [], {}, {}, []
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kinds.append(record.WhichOneof("record_type"))
        for item in record.config.update:
            config[item.key] = json.loads(item.value_json)
        for items, into in ((record.history.item, rows), (record.summary.update, None)):
            values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            if into is None:
                summary.update(values)
            elif values:
                into.append(values)
    compare("configuration", {name: config.get(name) for name in CONFIG}, CONFIG)
    for name, wanted in (("loss", LOSS), ("train_tokens", TOKENS), ("tensor", TENSOR),
                         ("split/train", [(5, 0.75)]), ("split/test", [(5, 0.25)]), ("note", [(6, NOTE)])):
        compare(name, [(row["_step"], row[name]) for row in rows if name in row], wanted)
    compare("summary", (summary.get("loss"), summary.get("_step")), (0.2, 9))
    compare("last records", kinds[-3:], ["exit", "final", "footer"])
    (picture,) = [row for row in rows if any(name.startswith("picture") for name in row)]
    compare("picture: step", picture["_step"], 7)
    (name,) = picture["picture/filenames"]
    compare_picture("picture", picture_of(f"{files}/{name}"))
    (table,) = [row for row in rows if "table/path" in row]
    with open(f"{files}/{table['table/path']}") as file:
        compare("table", {name: value for name, value in json.load(file).items() if name in TABLE}, TABLE)
    (weights,) = [row for row in rows if "weights/bins" in row]
    compare_histogram("weights", weights["weights/values"], weights["weights/bins"])
    return "wandb", "its DataStore and protobuf", "history, configuration, summary, image, table, histogram"


def read_trackio(folder, _):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = trackio.Api().runs("vendors")
    compare("configuration", {name: run.config.get(name) for name in CONFIG}, CONFIG)
    rows = SQLiteStorage.get_logs("vendors", run.name)
    for name, wanted in (("loss", LOSS), ("train_tokens", TOKENS), ("tensor", TENSOR),
                         ("split", [(5, {"train": 0.75, "test": 0.25})]), ("note", [(6, NOTE)])):
        compare(name, [(row["step"], row[name]) for row in rows if name in row], wanted)
    (picture,) = [row for row in rows if "picture" in row]
    compare("picture: step", picture["step"], 7)
    compare_picture("picture", picture_of(f"{folder}/media/{picture['picture']['file_path']}"))
    (table,) = [row["table"] for row in rows if "table" in row]
    compare("table", table["_value"], [{"name": "a", "value": 1}, {"name": "b", "value": 2.5}])
    (weights,) = [row["weights"] for row in rows if "weights" in row]
    compare_histogram("weights", weights["values"], weights["bins"])
    return "trackio", "Api and SQLiteStorage", "curves, text, configuration, image, table, histogram"


def read_dvclive(folder, _):
    os.chdir(folder)
    import dvc.api
    from dvc.repo import Repo
    from dvclive import Live
    from dvclive.utils import parse_metrics

    with Repo.init(".", no_scm=True):
        pass
    compare("params", dvc.api.params_show(), CONFIG)
    compare("metrics", dvc.api.metrics_show(), {"loss": 0.2, "train_tokens": 400000028, "step": 6})
    live = Live(resume=True, save_dvc_exp=False, dvcyaml=None, report=None)
    compare("next step", live.step, 7)
    history, _ = parse_metrics(live)
    for path, rows in history.items():
        name = os.path.splitext(os.path.basename(path))[0]
        wanted = {"loss": LOSS, "train_tokens": TOKENS}[name]
        compare(name, [(int(row["step"]), float(row[name])) for row in rows], wanted)
    compare("names", len(history), 2)
    compare_picture("picture", picture_of("dvclive/plots/images/picture/7.png"))
    with Repo(".") as repo:
        plots = [entry for entry in repo.plots.collect()][0]["workspace"]["definitions"]["data"]
    compare("dvc.yaml", sorted(plots["dvc.yaml"]["data"]), sorted(
        f"dvclive/plots/{name}" for name in ("images/picture/7.png", "metrics/loss.tsv", "metrics/train_tokens.tsv")))
    return "dvclive", "Live(resume=True), dvc.api, DVC's plots", "metrics, params, image, dvc.yaml"


def read_aim(folder, _):
    import subprocess

    import aim
    from aim.storage.context import Context

    # Aim's own server makes the index that its readers need; this is its command for the same.
    subprocess.run([os.path.dirname(sys.executable) + "/aim", "storage", "--repo", folder, "reindex"],
                   input=b"y\n", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    (run,) = aim.Repo(folder).iter_runs()
    compare("name", run.name, "vendors")
    compare("hyperparameters", run["hparams"], CONFIG)
    if run.finalized_at is None:
        differences.append("the run has no end")
    curves = {metric.name: metric.dataframe() for metric in run.metrics() if not metric.name.startswith("__")}
    compare("names", sorted(curves), ["loss", "tensor", "train_tokens"])
    for name, wanted in (("loss", LOSS), ("train_tokens", TOKENS), ("tensor", TENSOR)):
        compare(name, sorted(zip(curves[name]["step"], curves[name]["value"])), wanted)
    steps, (image,) = run.get_image_sequence("picture", Context({})).values.sparse_list()
    compare("picture: step", steps, [7])
    compare_picture("picture", image.to_pil_image())
    steps, (distribution,) = run.get_distribution_sequence("weights", Context({})).values.sparse_list()
    compare("weights: step", steps, [9])
    counts, edges = distribution.to_np_histogram()
    compare_histogram("weights", [int(count) for count in counts], list(edges))
    return "aim", "Repo and Run", "metrics, hyperparameters, image, distribution, end of the run"


def read_clearml(folder, _):
    (path,) = glob.glob(f"{folder}/offline/offline-*.zip")
    with zipfile.ZipFile(path) as session:
        task = json.loads(session.read("task.json"))
        lines = session.read("metrics.jsonl").decode().splitlines()
        events = [event for line in lines for event in json.loads(line)]
        (picture,) = [name for name in session.namelist() if "picture_train" in name]
        compare_picture("picture", picture_of(session.read(picture)), tolerance=40)  # ClearML stores JPEG
    compare("names", (task["project_name"], task["name"]), ("vendors", "vendors"))
    from clearml.utilities.config import text_to_config_dict
    compare("configuration", dict(text_to_config_dict(task["configuration"]["General"]["value"])), CONFIG)
    for metric, wanted in (("loss", LOSS), ("tokens", TOKENS)):
        got = [(event["iter"], event["value"]) for event in events
               if event["type"] == "training_stats_scalar" and (event["metric"], event["variant"]) == (metric, "train")]
        compare(metric, sorted(got), wanted)
    (table,) = [event for event in events if event["type"] == "plot"]
    compare("table: step", table["iter"], 8)
    cells = json.loads(table["plot_str"])["data"][0]
    compare("table", ([name.strip("</b>") for name in cells["header"]["values"]], cells["cells"]["values"]),
            (["name", "value"], [["a", "b"], [1, 2.5]]))
    return "clearml", "the offline session that it wrote", "scalars, configuration, image, table"


def read_comet_ml(folder, _):
    (path,) = glob.glob(f"{folder}/*.zip")
    with zipfile.ZipFile(path) as archive:
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        assets = {}
        for message in messages:
            payload = message["payload"]
            if "upload_type" in payload and payload.get("file_path"):
                assets[payload["upload_type"]] = payload, archive.read(payload["file_path"])
    metrics = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
    for name, wanted in (("loss", LOSS), ("train_tokens", TOKENS), ("train", [(5, 0.75)]), ("test", [(5, 0.25)])):
        compare(name, [(metric["step"], metric["metricValue"]) for metric in metrics if metric["metricName"] == name], wanted)
    params = {message["payload"]["param"]["paramName"]: message["payload"]["param"]["paramValue"]
              for message in messages if message["type"] == "parameter_msg"}
    params.pop("curr_step", None)
    compare("parameters", params, flat(CONFIG, "|"))
    others = {message["payload"]["key"]: message["payload"]["value"] for message in messages if message["type"] == "log_other"}
    compare("note", others.get("note"), NOTE)
    payload, data = assets["visualization"]
    compare("picture: name", (payload["additional_params"]["figName"], payload["additional_params"]["step"]), ("picture", 7))
    compare_picture("picture", picture_of(data))
    payload, data = assets["asset"]
    compare("table", (payload["additional_params"]["fileName"], data.decode().split()), ("table.csv", ["name,value", "a,1", "b,2.5"]))
    payload, data = assets["histogram3d"]
    compare("weights: step", payload["additional_params"]["step"], 9)
    compare("weights: values", sum(count for _, count in json.loads(data)["index_values"]), len(WEIGHTS))
    return "comet_ml", "the offline archive that it wrote", "metrics, parameters, text, image, table, histogram"


def read_swanlab(folder, _):
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (path,) = glob.glob(f"{folder}/run-*/run-*.swanlab")
    reader = DataStoreReader()
    reader.open(path)
    curves, media, project = {}, {}, None
    while (data := reader.scan()) is not None:
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "start":
            project = record.start.project
        elif kind == "scalar":
            curves.setdefault(record.scalar.key, []).append((record.scalar.step, record.scalar.value.number))
        elif kind == "media":
            media[record.media.key] = record.media
    compare("project", project, "vendors")
    for name, wanted in (("loss", LOSS), ("train_tokens", TOKENS), ("tensor", TENSOR),
                         ("split/train", [(5, 0.75)]), ("split/test", [(5, 0.25)])):
        compare(name, curves.get(name), wanted)
    compare("names", len(curves), 5)
    import yaml
    with open(f"{os.path.dirname(path)}/files/config.yaml") as file:
        config = {name: entry["value"] for name, entry in yaml.safe_load(file).items()}
    # HF Accelerate's tracker names the framework; SwanLab keeps the argument of `update` as an entry.
    extras = {"FRAMEWORK": "\N{HUGGING FACE}Accelerate", "allow_val_change": True}
    compare("configuration", config, {**CONFIG, **extras})
    compare("picture: step", media["picture"].step, 7)
    (item,) = media["picture"].value.items
    (name,) = glob.glob(f"{os.path.dirname(path)}/media/image/**/{item.filename}", recursive=True)
    compare_picture("picture", picture_of(name))
    return "swanlab", "its DataStoreReader and protobuf", "scalars, configuration, image"


def main():
    vendor, folder = sys.argv[1:3]
    address = sys.argv[3] if len(sys.argv) > 3 else None
    package, reader, what = globals()[f"read_{vendor}"](os.path.abspath(folder), address)
    for difference in differences:
        print(f"{vendor}: {difference}", file=sys.stderr)
    if differences:
        return 1
    print(f"| {package} | {importlib.metadata.version(package)} | {reader} | {what} | {equal} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
