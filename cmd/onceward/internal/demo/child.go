package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Child serves as one process of several. It reads its configuration as one line from in, writes its URL as one line to out,
// and ends when in does: so it never outlives its parent, on any system. The contexts are as those of [Run].
func Child(ctx, hurry context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("this command is for the demo's own use: %w", err)
	}
	var config nodeConfig
	if err := json.Unmarshal(first, &config); err != nil {
		return err
	}
	n, err := startNode(ctx, config)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, n.address()); err != nil {
		return errors.Join(err, n.close(hurry))
	}
	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, lines) // that it has ended is all that matters
		close(orphaned)
	}()
	select {
	case <-orphaned:
	case <-ctx.Done():
	case err = <-n.failed():
	}
	return errors.Join(err, n.close(hurry))
}
