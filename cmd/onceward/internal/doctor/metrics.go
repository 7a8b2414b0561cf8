package doctor

import "context"

var metricsTrials []trial[*metrics]

type metrics struct{}

func examineMetrics(context.Context, string) ([]Result, error) { return nil, nil }
