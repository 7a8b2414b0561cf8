// Package interrupt is how the programs of this repository are ended: the first interrupt ends a program in order, the
// second one cuts the order short, and the third one ends the program where it is.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Listen returns two contexts, which end with the first and the second SIGINT or SIGTERM.
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
