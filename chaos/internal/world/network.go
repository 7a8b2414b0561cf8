package world

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is the wires between clients, nodes, providers and the database. Each wire can be made slow, lossy or cut.
type network struct {
	server *toxiproxy.ApiServer
	wires  []*wire
}

func newNetwork() *network {
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics write to the global logger
	return &network{server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
}

// wire is one of them: what connects to addr gets through to the other side.
type wire struct {
	name  string
	proxy *toxiproxy.Proxy
	toxic atomic.Int64
}

func (n *network) lay(name, to string) (*wire, error) {
	proxy := toxiproxy.NewProxy(n.server, name, "127.0.0.1:0", to)
	if err := proxy.Start(); err != nil {
		return nil, fmt.Errorf("wire to %s: %w", name, err)
	}
	w := &wire{name: name, proxy: proxy}
	n.wires = append(n.wires, w)
	return w, nil
}

func (n *network) close() {
	for _, w := range n.wires {
		w.proxy.Stop()
	}
}

func (w *wire) addr() string { return w.proxy.Listen }

// The ways in which a wire is bad, in the words of toxiproxy. Upstream is towards the server, downstream the way back.
const (
	slow        = `"type":"latency","stream":"%s","attributes":{"latency":250,"jitter":200}`
	losing      = `"type":"timeout","stream":"%s","attributes":{"timeout":700}`
	resetting   = `"type":"reset_peer","stream":"%s","attributes":{"timeout":0}`
	cutShort    = `"type":"limit_data","stream":"%s","attributes":{"bytes":40}`
	trickling   = `"type":"bandwidth","stream":"%s","attributes":{"rate":2}`
	toServer    = "upstream"
	fromServer  = "downstream"
	healingTime = 5 * time.Second
)

// suffer makes the wire bad in one direction for a while.
func (w *wire) suffer(ctx context.Context, how, direction string, length time.Duration) error {
	name := fmt.Sprintf("t%d", w.toxic.Add(1))
	_, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"name":%q,`+how+`}`, name, direction)))
	if err != nil {
		return fmt.Errorf("wire to %s: %w", w.name, err)
	}
	pause(ctx, length)
	healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), healingTime)
	defer cancel()
	if err := w.proxy.Toxics.RemoveToxic(healing, name); err != nil {
		return fmt.Errorf("wire to %s: %w", w.name, err)
	}
	return nil
}

// snap cuts all connections over the wire at once; new ones are refused for a while.
func (w *wire) snap(ctx context.Context, length time.Duration) error {
	w.proxy.Stop()
	pause(ctx, length)
	var err error
	for range 20 {
		if err = w.proxy.Start(); err == nil || errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // somebody else may hold the port for a moment
	}
	return fmt.Errorf("wire to %s: %w", w.name, err)
}

// pause waits, unless the run ends before.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}
