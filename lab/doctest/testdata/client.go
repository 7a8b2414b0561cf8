package page

import (
	"context"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/telemetry"
)

var _ client.Config

var (
	ctx     context.Context
	url     string
	body    io.Reader
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	traced  http.RoundTripper
)
