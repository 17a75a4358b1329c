"""What an installation on Kubernetes needs beside the manifests in deploy/k8s."""
