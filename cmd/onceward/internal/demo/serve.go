package demo

import (
	"context"
	"errors"
	"io"
)

// serve serves until the context ends.
func (w *world) serve(ctx, hurry context.Context, out io.Writer) error {
	n, err := startNode(ctx, w.node)
	if err != nil {
		return err
	}
	w.aim(n.address() + "/events")
	if err := w.guide(out, n.address()); err != nil {
		return errors.Join(err, n.close(hurry))
	}
	select {
	case <-ctx.Done():
	case err = <-n.failed():
	}
	w.provider.ClearFaults() // or a request that waits for the provider would hold up the end
	return errors.Join(err, n.close(hurry))
}
