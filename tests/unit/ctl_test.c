// ctl: which question a command line asks, and which it is refused.

#include "scheduler/ctl.h"

#include <criterion/criterion.h>
#include <string.h>

static conf_t conf;
static ctl_question_t question;
static hx_fault_t fault;

static void set_up(void)
{
    static const char text[] = "plan\n    workers = 2\n    servers = 1\n";
    cr_assert_eq(conf_read("t.conf", text, sizeof text - 1, NULL, 0, &conf, &fault), HX_OK, "%s",
                 fault.text);
}

static void tear_down(void)
{
    conf_destroy(&conf);
}

TestSuite(ctl, .init = set_up, .fini = tear_down);

#define ASK(...) ask((const char *const[]){__VA_ARGS__, NULL})
static hx_err_t ask(const char *const *words)
{
    size_t count = 0;
    while (words[count]) {
        count++;
    }
    return ctl_question(&conf, words, count, &question, &fault);
}

Test(ctl, commands_become_messages)
{
    cr_assert_eq(ASK("status"), HX_OK);
    cr_assert_eq(question.msg.kind, WIRE_STATUS_ASK);
    cr_assert_eq(question.answer, WIRE_STATUS);
    cr_assert_eq(ASK("stop"), HX_OK);
    cr_assert_eq(question.msg.kind, WIRE_STOP_ASK);
    cr_assert_eq(question.msg.count, 130);
    cr_assert_eq(question.answer, 0);
    cr_assert_eq(ASK("checkpoint"), HX_OK);
    cr_assert_eq(question.msg.count, WIRE_ORDER_CHECKPOINT);
    cr_assert_gt(question.patience, CTL_PATIENCE);
    cr_assert_eq(ASK("drain", "west/slow"), HX_OK);
    cr_assert_eq(question.msg.count, WIRE_ORDER_DRAIN);
    cr_assert_str_eq(question.msg.text, "west/slow");
}

Test(ctl, set_names_the_key_in_full)
{
    cr_assert_eq(ASK("set", "sync.staleness", "8"), HX_OK);
    cr_assert_eq(question.msg.count, WIRE_ORDER_SET);
    cr_assert_str_eq(question.msg.text, "sync.staleness=8");
    cr_assert_eq(ASK("set", "lr", "0.1"), HX_OK);
    cr_assert_str_eq(question.msg.text, "train.lr=0.1");
    cr_assert_eq(ASK("set", "worker.slow.slowdown", "3"), HX_OK);
    cr_assert_str_eq(question.msg.text, "worker.slow.slowdown=3");
}

static void refused(hx_err_t err, const char *says)
{
    cr_expect_eq(err, HX_E_ARG);
    cr_expect(strstr(fault.text, says), "\"%s\" does not say \"%s\"", fault.text, says);
    cr_expect_null(strchr(fault.text, '\n'));
}

Test(ctl, mistakes_are_named)
{
    refused(ASK("stat"), "\"status\"");
    refused(ASK("set", "sync.staleness"), "set KEY VALUE");
    refused(ASK("status", "now"), "`status`");
    refused(ASK("drain"), "drain NODE");
    refused(ASK("set", "sync.stalenes", "8"), "sync.staleness");
    refused(ASK("set", "stalenes", "8"), "sync.staleness");
    refused(ASK("set", "sync.mode", "bsp"), "cannot be changed");
    refused(ASK("set", "sync.quorum", "7"), "out of range");
}
