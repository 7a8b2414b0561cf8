// Package scrape reads what a service shows to Prometheus, for those who have no Prometheus to ask.
package scrape

import (
	"context"
	"fmt"
	"io"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// limit is the most that is read of a page.
const limit = 64 << 20

// Read reads the page at a URL: its metrics by their names. A counter is on it from its first event on.
func Read(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	request.Close = true // it is asked seldom
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", request.URL.Redacted(), response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("%s does not answer in the text format of Prometheus: %w", request.URL.Redacted(), err)
	}
	return families, nil
}

// Sum adds up a counter for each value of one of its labels.
func Sum(counter *dto.MetricFamily, label string) map[string]float64 {
	sums := make(map[string]float64)
	for _, series := range counter.GetMetric() {
		for _, pair := range series.GetLabel() {
			if pair.GetName() == label {
				sums[pair.GetValue()] += series.GetCounter().GetValue() + series.GetUntyped().GetValue()
			}
		}
	}
	return sums
}
