"""Text files as string constants of a C++ source."""

def embed_text(name, header, namespace, constants):
    """Writes NAME.cc with a constant per entry.

    Args:
      name: of the rule and, with ".cc", of its output.
      header: that declares the constants.
      namespace: that they are in.
      constants: by constant, the files whose texts it holds, one after the other.
    """
    delimiter = "embedded"
    commands = ["echo '#include \"{}\"'".format(header), "echo 'namespace {} {{'".format(namespace)]
    for constant, files in constants.items():
        commands.append("printf 'extern const char {}[] = R\"{}('".format(constant, delimiter))
        commands.extend(["cat $(location {})".format(file) for file in files])
        commands.append("echo '){}\";'".format(delimiter))
    commands.append("echo '}'")
    native.genrule(
        name = name,
        srcs = [file for files in constants.values() for file in files],
        outs = [name + ".cc"],
        cmd = "(" + " && ".join(commands) + ") > $@",
    )
