"""Tools for working on this repository: the local cluster, the images, the installation of the operator."""
