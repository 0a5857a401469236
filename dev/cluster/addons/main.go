// One binary holding what a cluster needs beside the Kubernetes components: DNS, NetworkPolicy enforcement, dynamic
// volumes, simulated nodes and the way to the API server from outside. The first argument chooses.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	kwoknode "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	kwokbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	kwokpod "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
)

var kubeconfig, node, dir string

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: addons dns|netpol|volumes|kwok|forward [flags]")
		os.Exit(2)
	}
	addon := os.Args[1]
	os.Args = os.Args[1:]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch addon {
	case "dns":
		dnsserver.Directives = []string{"bind", "ready", "health", "errors", "log", "cache", "loadbalance",
			"rewrite", "template", "hosts", "kubernetes", "forward"}
		coremain.Run()
	case "netpol":
		client := parse()
		factory := informers.NewSharedInformerFactory(client, 0)
		c, err := networkpolicy.NewController(client, factory.Networking().V1().NetworkPolicies(),
			factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), nil, nil, nil, nil,
			networkpolicy.Config{NodeName: node})
		check(err)
		factory.Start(ctx.Done())
		check(c.Run(ctx))
	case "volumes":
		client := parse()
		controller.NewProvisionController(ctx, client, provisionerName, &volumes{dir: dir, node: node},
			controller.LeaderElection(false)).Run(ctx)
	case "kwok": // with kwok's own fast stages, which it does not load by itself
		stages := filepath.Join(os.TempDir(), "kwok-stages.yaml")
		check(os.WriteFile(stages, []byte(strings.Join([]string{kwoknode.DefaultNodeInit, kwokbeat.DefaultNodeHeartbeatWithLease,
			kwokpod.DefaultPodReady, kwokpod.DefaultPodComplete, kwokpod.DefaultPodDelete}, "\n---\n")), 0o644))
		os.Args = append(os.Args, "--config", stages)
		flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
		flags.ParseErrorsAllowlist.UnknownFlags = true
		flags.Usage = func() {}
		ctx, _ = kwoklog.InitFlags(ctx, flags)
		ctx, err := kwokconfig.InitFlags(ctx, flags)
		check(err)
		cmd := kwok.NewCommand(ctx)
		cmd.PersistentFlags().AddFlagSet(flags)
		check(cmd.ExecuteContext(ctx))
	case "forward":
		check(forward())
	default:
		check(fmt.Errorf("unknown addon %q", addon))
	}
}

func parse() *kubernetes.Clientset {
	klog.InitFlags(nil)
	flag.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file")
	flag.StringVar(&node, "node", "", "name of this node")
	flag.StringVar(&dir, "dir", "", "folder that holds the volumes")
	flag.Parse()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	check(err)
	cfg.QPS, cfg.Burst = 100, 200
	return kubernetes.NewForConfigOrDie(cfg)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
