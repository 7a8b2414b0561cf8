package fine

import "testing"

func TestNothing(*testing.T) {}
