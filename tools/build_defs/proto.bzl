"""Messages of protobuf, compiled by the machine's own protoc."""

load("//tools/build_defs:cc.bzl", "accelerate_cc_library")

def accelerate_proto_library(name, src, visibility = None):
    """The library of one .proto file that imports nothing; its header is the file's name.pb.h."""
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_source",
        srcs = [src],
        outs = [stem + ".pb.cc", stem + ".pb.h"],
        cmd = "protoc --proto_path=. --cpp_out=$(GENDIR) $(location %s)" % src,
    )
    accelerate_cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        visibility = visibility,
        deps = ["@protobuf"],
    )
