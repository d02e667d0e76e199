"""What Bazel compiled, for CMake to link."""

load("@rules_cc//cc:defs.bzl", "CcInfo")

_Linked = provider(fields = {"inputs": "A depset of LinkerInputs: what a program is linked from."})

def _linked_impl(_, ctx):
    contexts = [dep[CcInfo].linking_context for dep in ctx.rule.attr.deps if CcInfo in dep]
    return [_Linked(inputs = depset(transitive = [context.linker_inputs for context in contexts]))]

_linked = aspect(implementation = _linked_impl, doc = "Looks through a program at its deps.")

_Joined = provider(fields = {"sources": "A depset of files that room() has joined for the compiler."})

def _joined_impl(_, ctx):
    attr = ctx.rule.attr
    is_joined = ctx.rule.kind == "genrule" and "_joined_" in attr.name
    below = getattr(attr, "deps", []) + getattr(attr, "srcs", [])
    return [_Joined(sources = depset(
        ctx.rule.files.srcs if is_joined else [],
        transitive = [each[_Joined].sources for each in below if _Joined in each],
    ))]

_joined = aspect(
    implementation = _joined_impl,
    attr_aspects = ["deps", "srcs"],
    doc = "Finds the sources of rooms whose objects do not tell.",
)

def _source(package, object):
    return "{}/{}.cc".format(package, object.basename[:-len(".pic.o")])

def _add(linker_inputs, user, up, lines, archives):
    for linker_input in linker_inputs.to_list():
        package = linker_input.owner.package
        if linker_input.owner.workspace_name:
            continue
        for library in linker_input.libraries:
            archive = library.pic_static_library
            if not archive:
                continue
            archives[archive] = True
            used_by = user or package.split("/")[0]
            lines["library {} {}/{}".format(used_by, up, archive.short_path)] = True
            for object in library.pic_objects or []:
                if "_joined_" not in object.basename:
                    lines["source " + _source(package, object)] = True

def _own_objects(program, archives):
    """The objects of a program's sources: of its own ones, and of its folder's that are in no library of the above."""
    objects = list(program[OutputGroupInfo].compilation_outputs.to_list())
    for linker_input in program[_Linked].inputs.to_list():
        if linker_input.owner.workspace_name or linker_input.owner.package != program.label.package:
            continue
        for library in linker_input.libraries:
            if library.pic_static_library not in archives:
                objects += list(library.pic_objects or [])
    return objects

def _built_objects_impl(ctx):
    up = "/".join([".." for _ in ctx.label.package.split("/")])
    lines = {}
    archives = {}
    objects = {}
    for library in ctx.attr.libraries:
        _add(library[CcInfo].linking_context.linker_inputs, None, up, lines, archives)
    for program in ctx.attr.launcher:
        _add(program[_Linked].inputs, "launch", up, lines, archives)
    for target in ctx.attr.libraries + ctx.attr.launcher:
        for source in target[_Joined].sources.to_list():
            if not source.owner.workspace_name:
                lines["source " + source.short_path] = True
    for program in ctx.attr.launcher + ctx.attr.programs:
        for object in _own_objects(program, archives):
            objects[object] = True
            source = _source(program.label.package, object)
            lines["main {} {}/{}".format(source, up, object.short_path)] = True
    out = ctx.actions.declare_file(ctx.label.name + ".txt")
    ctx.actions.write(out, "\n".join(lines.keys()) + "\n")
    files = depset([out] + archives.keys() + objects.keys())
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

built_objects = rule(
    implementation = _built_objects_impl,
    attrs = {
        "libraries": attr.label_list(
            aspects = [_joined],
            providers = [CcInfo],
            doc = "Of the shared libraries; with all that they need.",
        ),
        "launcher": attr.label_list(
            aspects = [_linked, _joined],
            doc = "The launcher's programs.",
        ),
        "programs": attr.label_list(
            aspects = [_linked],
            doc = "Other programs, of the shared libraries and of sources in their own folders.",
        ),
    },
    doc = """Writes NAME.txt, with a line per source that was compiled, per archive of objects, and per source of
    a program:

    source accelerate/comm/operations.cc
    library accelerate ../../accelerate/comm/liboperations.pic.a
    main launch/main.cc ../../launch/_objs/accelerate/main.pic.o

    The word after `library` is what it is for: the library of that folder at the top, or the
    launcher. Paths are as seen from the list.""",
)
