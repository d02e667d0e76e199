"""Messages of protobuf, compiled by the machine's own protoc."""

load("//tools/build_defs:cc.bzl", "GENERATED", "accelerate_cc_library")

# As seen from where actions run.
_REPOSITORY = Label("//tools/build_defs").workspace_root or "."

def accelerate_proto_library(name, src, visibility = None):
    """The library of one .proto file of this repository that imports nothing; its header is the file's name.pb.h."""
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_source",
        srcs = [src],
        outs = [stem + ".pb.cc", stem + ".pb.h"],
        cmd = "protoc --proto_path=%s --cpp_out=%s $(location %s)" % (_REPOSITORY, GENERATED, src),
    )
    accelerate_cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        visibility = visibility,
        deps = [Label("@protobuf")],
    )
