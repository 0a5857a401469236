package main

import (
	"context"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const provisionerName = "sandbox-operator.dev/node-folder"

// volumes provisions a folder on the node for each claim, as a "local" volume, so that fsGroup applies.
type volumes struct{ dir, node string }

func (p *volumes) path(pv string) string { return filepath.Join(p.dir, filepath.Base(pv)) }

func (p *volumes) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	path := p.path(o.PVName)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: o.PVName}, Spec: v1.PersistentVolumeSpec{
		PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
		AccessModes:                   o.PVC.Spec.AccessModes,
		MountOptions:                  o.StorageClass.MountOptions,
		Capacity:                      v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
		PersistentVolumeSource:        v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{
				Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{p.node},
			}},
		}}}},
	}}
	return pv, controller.ProvisioningFinished, nil
}

func (p *volumes) Delete(_ context.Context, pv *v1.PersistentVolume) error {
	return os.RemoveAll(p.path(pv.Name))
}
