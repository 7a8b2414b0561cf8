// Package scrape reads a counter from what a service shows to Prometheus, for those who have no Prometheus to ask.
package scrape

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// limit is the most that is read of a page.
const limit = 64 << 20

// Sum reads the page at a URL, and returns the sum of a metric for each value of one of its labels. A metric that the
// page does not have gives an empty map: a counter is shown from its first event on.
func Sum(ctx context.Context, url, metric, label string) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain; version=0.0.4")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", url, response.Status)
	}
	return sum(io.LimitReader(response.Body, limit), metric, label)
}

// sum reads the text format of Prometheus.
func sum(page io.Reader, metric, label string) (map[string]float64, error) {
	sums := make(map[string]float64)
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), metric+"{")
		if !found {
			continue
		}
		labels, rest, err := parseLabels(rest)
		if err != nil {
			return nil, fmt.Errorf("the metric %s cannot be read: %w", metric, err)
		}
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ") // a timestamp may follow
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("the metric %s cannot be read: %w", metric, err)
		}
		sums[labels[label]] += value
	}
	return sums, lines.Err()
}

// parseLabels reads name="value" pairs up to the closing brace.
func parseLabels(text string) (labels map[string]string, rest string, err error) {
	labels = make(map[string]string)
	for {
		text = strings.TrimLeft(text, ", ")
		if rest, end := strings.CutPrefix(text, "}"); end {
			return labels, rest, nil
		}
		name, quoted, found := strings.Cut(text, "=")
		if !found {
			return nil, "", fmt.Errorf("labels without an end: %q", text)
		}
		value, err := strconv.QuotedPrefix(quoted) // Prometheus escapes the same three as Go: \\ \" \n
		if err != nil {
			return nil, "", fmt.Errorf("label %s: %w", name, err)
		}
		if labels[strings.TrimSpace(name)], err = strconv.Unquote(value); err != nil {
			return nil, "", fmt.Errorf("label %s: %w", name, err)
		}
		text = quoted[len(value):]
	}
}
