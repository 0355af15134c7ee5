package tools

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestAskUser(t *testing.T) {
	args := Args{Values: map[string]any{"question": "which one?"}}
	plan, err := AskUser.Assess(args)
	if err != nil {
		t.Fatal(err)
	}
	j := AskUser.Judge(args, plan, Facts{})
	if j.Risk != Safe || j.Refuse != "" || j.Egress.Kind != EgressNone || j.Summary != "ask: which one?" {
		t.Errorf("%+v", j)
	}
	call := &Call{Args: args, Plan: plan, Judgement: j, Host: &Host{Ask: func(_ context.Context, q string) (string, error) { return "to " + q, nil }}}
	if out := AskUser.Execute(t.Context(), call); out.Text != "to which one?" || out.Err != "" {
		t.Errorf("%+v", out)
	}
	call.Host.Ask = func(context.Context, string) (string, error) { return "", errors.New("nobody answered") }
	if out := AskUser.Execute(t.Context(), call); out.Err != "nobody answered" {
		t.Errorf("%+v", out)
	}
	call.Host.Ask = nil
	if out := AskUser.Execute(t.Context(), call); out.Err == "" {
		t.Errorf("%+v", out)
	}
	for _, q := range []string{"", " \n", strings.Repeat("é", maxQuestion+1)} {
		if _, err := AskUser.Assess(Args{Values: map[string]any{"question": q}}); err == nil {
			t.Errorf("%d bytes were accepted", len(q))
		}
	}
}
