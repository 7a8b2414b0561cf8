// Package brokers_test tests the consumers of messages of Kafka and of NATS with their servers in this process.
package brokers_test

import (
	"errors"
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/watchdog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

var errBroken = errors.New("broken")

var quiet = slog.New(slog.DiscardHandler)
