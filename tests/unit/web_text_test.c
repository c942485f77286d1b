// web_text: a status as a page and as metrics.

#include "scheduler/web_text.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char status[] =
    "{\"run\": \"one\", \"mode\": \"ssaw\", \"phase\": \"running\", \"version\": 7, \"tokens\": "
    "12345, "
    "\"loss\": null, \"valid_loss\": 2.5, \"commit_age_seconds\": 0.25, \"failures\": 1, "
    "\"nodes\": "
    "[{\"name\": \"east/<b>\", \"role\": \"worker\", \"state\": \"here\", \"heard_seconds\": 1.5}, "
    "{\"name\": \"a\\\"b\\\\\", \"role\": \"worker\", \"state\": \"gone\", \"heard_seconds\": 9}], "
    "\"sync\": {\"quorum\": 0.5, \"staleness\": null, \"dropped\": 3, \"nonfinite\": 2, "
    "\"nonsense\": 0, \"lags\": [10, 20, 5], \"pipelines\": [{\"pipeline\": 1, \"held\": 2, "
    "\"step_seconds\": 0.5, \"lag\": 1}, {\"pipeline\": 2, \"held\": 0, \"lag\": 0}]}}";

static void has(const char *text, const char *part)
{
    cr_expect(strstr(text, part), "no \"%s\" in:\n%s", part, text);
}

Test(web_text, metrics_are_lines_of_names_and_numbers)
{
    char *text = NULL;
    cr_assert_eq(web_text_metrics(status, strlen(status), &text), HX_OK);
    has(text, "harmony_run_info{run=\"one\",mode=\"ssaw\",phase=\"running\"} 1\n");
    has(text, "# TYPE harmony_version counter\nharmony_version 7\n");
    has(text, "harmony_valid_loss 2.5\n");
    has(text, "harmony_last_commit_age_seconds 0.25\n");
    has(text, "harmony_node_up{node=\"east/<b>\",role=\"worker\"} 1\n");
    has(text, "harmony_node_up{node=\"a\\\"b\\\\\",role=\"worker\"} 0\n");
    has(text, "# TYPE harmony_pipeline_held gauge\nharmony_pipeline_held{pipeline=\"1\"} 2\n"
              "harmony_pipeline_held{pipeline=\"2\"} 0\n");
    has(text, "harmony_dropped_total 3\n");
    has(text, "# TYPE harmony_lag_commits histogram\n"
              "harmony_lag_commits_bucket{le=\"0\"} 10\n"
              "harmony_lag_commits_bucket{le=\"1\"} 30\n"
              "harmony_lag_commits_bucket{le=\"+Inf\"} 35\n"
              "harmony_lag_commits_sum 30\nharmony_lag_commits_count 35\n");
    cr_expect_null(strstr(text, "harmony_loss "), "what is not known is left out");
    cr_expect_null(strstr(text, "harmony_staleness"));
    cr_expect_null(strstr(text, "nan"));
    // Values of one name stand together, under one description.
    const char *const first = strstr(text, "# TYPE harmony_node_up ");
    cr_assert(first);
    cr_expect_null(strstr(first + 1, "# TYPE harmony_node_up "));
    free(text);
}

Test(web_text, the_page_shows_the_status_and_no_markup_of_others)
{
    char *text = NULL;
    cr_assert_eq(web_text_page(status, strlen(status), &text), HX_OK);
    has(text, "<!DOCTYPE html>");
    has(text, "run \"one\": running, ssaw; commit 7");
    has(text, "east/&lt;b&gt;");
    cr_expect_null(strstr(text, "<b>"));
    free(text);
}

Test(web_text, what_is_no_status_is_refused)
{
    char *text = NULL;
    cr_expect_eq(web_text_page("{}", 2, &text), HX_E_FORMAT);
    cr_expect_eq(web_text_metrics("{}", 2, &text), HX_E_FORMAT);
    cr_expect_eq(web_text_metrics("[", 1, &text), HX_E_FORMAT);
}
