"""A test that fails when a training program costs more or less than before on simulated clusters."""

_LAUNCHER = Label("//launch:launcher")

# A word of a shell's line, whatever is in it.
def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

# What both rules run: the launcher's perf with a file that names the program and its clusters.
def _write_script(ctx, command):
    program = ctx.executable.program.short_path
    if "/" not in program:
        program = "./" + program  # The launcher would look for it in PATH.
    config = ctx.actions.declare_file(ctx.label.name + ".yaml")
    ctx.actions.write(config, json.encode({
        "workloads": [{
            "name": ctx.attr.workload,
            "program": [program] +
                       [ctx.expand_location(each, ctx.attr.data) for each in ctx.attr.arguments],
            "options": ctx.attr.options,
            "clusters": ctx.attr.topologies,
            "tolerances": ctx.attr.tolerances,
        }],
    }))
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(
        script,
        "\n".join([
            "#!/usr/bin/env bash",
            "set -eu",
            'cd "${TEST_SRCDIR:-$0.runfiles}/%s"' % ctx.workspace_name,
            command.format(
                launcher = _quoted(ctx.executable.launcher.short_path),
                config = _quoted(config.short_path),
                baselines = _quoted(ctx.attr.baselines),
                accept = _quoted(ctx.attr.accept),
            ),
            "",
        ]),
        is_executable = True,
    )
    runfiles = ctx.runfiles(files = [config] + ctx.files.data)
    for target in [ctx.attr.program, ctx.attr.launcher] + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

def _compare(ctx):
    return _write_script(ctx, """
outputs=${{TEST_UNDECLARED_OUTPUTS_DIR:-$(mktemp -d)}}
# Bazel 7 fails a test whose outputs it cannot pack.
command -v zip >/dev/null || outputs=$(mktemp -d)
exec {launcher} perf compare --config {config} --baselines {baselines} --accept_command {accept} \\
  --json "$outputs/changes.json" --markdown "$outputs/changes.md"
""")

def _accept(ctx):
    return _write_script(ctx, """
: "${{BUILD_WORKSPACE_DIRECTORY:?is set by bazel run, which this is for}}"
exec {launcher} perf accept --config {config} --baselines "$BUILD_WORKSPACE_DIRECTORY"/{baselines}
""")

_ATTRIBUTES = {
    "accept": attr.string(),
    "arguments": attr.string_list(),
    "baselines": attr.string(),
    "data": attr.label_list(allow_files = True),
    "launcher": attr.label(default = _LAUNCHER, executable = True, cfg = "target"),
    "options": attr.string_list(),
    "program": attr.label(mandatory = True, executable = True, cfg = "target"),
    "tolerances": attr.string_dict(),
    "topologies": attr.string_list(mandatory = True),
    "workload": attr.string(),
}

_compare_test = rule(implementation = _compare, test = True, attrs = _ATTRIBUTES)
_accept_program = rule(implementation = _accept, executable = True, attrs = _ATTRIBUTES)

def accelerate_perf_test(
        name,
        program,
        topologies,
        baseline,
        tolerances = {},
        options = [],
        args = [],
        data = [],
        launcher = _LAUNCHER,
        size = "small",
        tags = [],
        **kwargs):
    """A test of what a program costs, and `NAME.accept`, which writes the baseline when it is run.

    Args:
      name: of the test.
      program: a cc_binary that trains with accelerate::run and is linked to //simulator/run.
      topologies: simulated clusters, as --simulate names them.
      baseline: the JSON file in this package, or in a folder below it. `bazel run :NAME.accept` writes it,
        for the first time too.
      tolerances: by metric ("time/step") or group ("memory"), as {"time": "1 %"}; exact if not named.
      options: of `accelerate launch`, as ["--mixed_precision", "bf16"].
      args: of the program; $(rootpath LABEL) is a file of `data`.
      data: files that the program reads.
      launcher: the `accelerate` program that the test and `NAME.accept` run.
      size: as tests have it.
      tags: as tests have them.
      **kwargs: of the test.
    """
    folder, _, file = baseline.rpartition("/")
    if not file.endswith(".json"):
        fail("%s: the baseline \"%s\" is not a .json file" % (name, baseline))
    common = dict(
        accept = "bazel run //%s:%s.accept" % (native.package_name(), name),
        arguments = args,
        baselines = "/".join([part for part in [native.package_name(), folder] if part]) or ".",
        launcher = launcher,
        options = options,
        program = program,
        tolerances = tolerances,
        topologies = topologies,
        workload = file[:-len(".json")],
    )
    _compare_test(name = name, size = size, tags = tags, data = data + [baseline], **dict(common, **kwargs))
    _accept_program(name = name + ".accept", tags = ["manual"], testonly = True, data = data, **common)
