package client

import "net/http"

// NewClient returns an [http.Client] whose requests are operations of a
// [Transport]. If you set its Timeout, the timeout covers all attempts together.
func NewClient(c Config) (*http.Client, error) {
	t, err := New(c)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}
