// Package interrupt defines how interrupts end the programs of this repository: the first interrupt
// starts an orderly shutdown, the second cuts it short, and the third ends the program immediately.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Listen returns two contexts, which end at the first and the second SIGINT or SIGTERM.
func Listen() (first, second context.Context) {
	first, endInOrder := context.WithCancel(context.Background())
	second, endNow := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		endInOrder()
		<-signals
		signal.Stop(signals)
		endNow()
	}()
	return first, second
}
