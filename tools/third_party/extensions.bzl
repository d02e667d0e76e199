"""The external repositories of MODULE.bazel, by the rules that a WORKSPACE takes them from."""

load("//tools/third_party:repositories.bzl", "libraries")

third_party = module_extension(
    implementation = lambda _: libraries(),
    doc = "The libraries of the system that the project stands on.",
)
