// conf_value: one value, from text and back.

#include "net/conf_value.h"

#include <criterion/criterion.h>
#include <string.h>

static const conf_key_t *key_of(const char *name)
{
    const size_t index = conf_key_find(name);
    cr_assert_neq(index, SIZE_MAX, "%s", name);
    return conf_key(index);
}

static hx_err_t parse(const char *name, const char *text, conf_t *conf, hx_fault_t *fault)
{
    *fault = (hx_fault_t){0};
    return conf_value_parse(key_of(name), text, conf, fault);
}

Test(conf_value, units_become_the_fields_own_unit)
{
    static conf_t conf;
    hx_fault_t fault;
    cr_expect_eq(parse("run.dead_after", "500 ms", &conf, &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.run.dead_after, HX_MS(500));
    cr_expect_eq(parse("run.dead_after", "2min", &conf, &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.run.dead_after, HX_SEC(120));
    cr_expect_eq(parse("run.dead_after", "1.5", &conf, &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.run.dead_after, HX_MS(1500));
    cr_expect_eq(parse("server.block", "64 KiB", &conf, &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.server.block, 65536);
    cr_expect_eq(parse("server.block", "1048576", &conf, &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.server.block, 1048576);
    cr_expect_eq(parse("train.global_batch", "4096 tokens", &conf, &fault), HX_OK, "%s",
                 fault.text);
    cr_expect_eq(conf.train.global_batch, 4096);
}

Test(conf_value, words_stand_for_numbers)
{
    static conf_t conf;
    hx_fault_t fault;
    cr_expect_eq(parse("sync.quorum", "one", &conf, &fault), HX_OK);
    cr_expect_eq(conf.sync.quorum, CONF_QUORUM_ONE);
    cr_expect_eq(parse("sync.staleness", "none", &conf, &fault), HX_OK);
    cr_expect_eq(conf.sync.staleness, CONF_UNBOUNDED);
    cr_expect_eq(parse("plan.pipelines", "auto", &conf, &fault), HX_OK);
    cr_expect_eq(conf.plan.pipelines, CONF_AUTO);
    cr_expect_eq(parse("run.trace_steps", "none", &conf, &fault), HX_OK);
    cr_expect_eq(conf.run.trace_first, 0);
    cr_expect_eq(parse("run.trace_steps", "3-20", &conf, &fault), HX_OK);
    cr_expect_eq(conf.run.trace_first, 3);
    cr_expect_eq(conf.run.trace_last, 20);
    cr_expect_eq(parse("train.valid", "held out.txt", &conf, &fault), HX_OK);
    cr_expect_str_eq(conf.train.valid_file, "held out.txt");
    cr_expect_eq(parse("train.valid", "0.1", &conf, &fault), HX_OK);
    cr_expect_str_eq(conf.train.valid_file, "");
    cr_expect_float_eq(conf.train.valid, 0.1, 1e-12);
    cr_expect_eq(parse("plan.method", "file:my plan", &conf, &fault), HX_OK);
    cr_expect_eq(conf.plan.method, CONF_METHOD_FILE);
    cr_expect_str_eq(conf.plan.method_file, "my plan");
}

Test(conf_value, refusals_say_what_is_expected_and_change_nothing)
{
    static const struct {
        const char *key, *text, *says;
    } bad[] = {
        {"train.lr", "", "expected a number"},
        {"train.lr", "0x1p-3", "unknown unit `x1p-3`"},
        {"train.lr", "inf", "expected a number"},
        {"train.lr", "nan", "expected a number"},
        {"train.lr", "1e999", "expected a number"},
        {"train.lr", "0.1.2", "expected a number"},
        {"train.lr", "0", "above 0"},
        {"train.lr", "-1", "above 0"},
        {"model.layers", "2.5", "unknown unit `.5`"},
        {"model.layers", "0", "at least 1"},
        {"model.layers", "two", "expected a whole number"},
        {"model.layers", "99999999999999999999", "out of range"},
        {"run.dead_after", "15 parsecs", "unknown unit `parsecs`; the unit is ms, s, min or h"},
        {"server.block", "1 MIB", "unknown unit `MIB`"},
        {"server.block", "100", "at least 4096"},
        {"train.lr", "0.1 s", "bare number"},
        {"sync.quorum", "1.5", "at most 1, or one of: one, auto"},
        {"sync.quorum", "0", "above 0"},
        {"sync.mode", "ssaww", "the nearest is `ssaw`"},
        {"sync.compress", "topk:0.01", "not in this version"},
        {"model.family", "llama", "not in this version"},
        {"security.curve", "2", "at most 1"},
        {"run.name", "", "a name has"},
        {"run.name", "../up", "a name has"},
        {"run.name", "-x", "a name has"},
        {"run.trace_steps", "5-3", "the last is not before"},
        {"run.trace_steps", "0-3", "count from 1"},
        {"run.trace_steps", "3-", "FIRST-LAST"},
        {"train.valid", "1", "below 1"},
        {"plan.method", "file", "file:PATH"},
        {"plan.method", "uniform:x", "file:PATH"},
        {"train.data", "a\nb", "control characters"},
    };
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        static conf_t conf, before;
        hx_fault_t fault;
        memset(&conf, 0x5a, sizeof conf);
        before = conf;
        cr_expect_neq(parse(bad[at].key, bad[at].text, &conf, &fault), HX_OK, "%s = %s accepted",
                      bad[at].key, bad[at].text);
        cr_expect(strstr(fault.text, bad[at].says), "\"%s\" does not say \"%s\"", fault.text,
                  bad[at].says);
        cr_expect(strstr(fault.text, bad[at].key), "%s", fault.text);
        cr_expect_arr_eq(&conf, &before, sizeof conf, "%s = %s changed something", bad[at].key,
                         bad[at].text);
    }
}

Test(conf_value, a_formatted_value_reads_back_as_itself)
{
    static const struct {
        const char *key, *text;
    } values[] = {
        {"train.lr", "0.1"},        {"train.lr", "0.30000000000000004"},
        {"train.eps", "1e-8"},      {"run.dead_after", "0.0625"},
        {"run.trace_steps", "7"},   {"sync.quorum", "one"},
        {"sync.staleness", "none"}, {"train.valid", "file.bin"},
        {"train.valid", "0.07"},    {"plan.method", "file:p"},
        {"plan.method", "single"},  {"server.block", "3 MiB"},
        {"worker.threads", "auto"}, {"run.seed", "9007199254740992"},
        {"security.curve", "1"},
    };
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        static conf_t first, second;
        hx_fault_t fault;
        char text[CONF_TEXT_MAX], again[CONF_TEXT_MAX];
        memset(&first, 0, sizeof first);
        memset(&second, 0, sizeof second);
        cr_assert_eq(parse(values[at].key, values[at].text, &first, &fault), HX_OK, "%s",
                     fault.text);
        conf_value_format(key_of(values[at].key), &first, text, sizeof text);
        cr_assert_eq(parse(values[at].key, text, &second, &fault), HX_OK, "%s", fault.text);
        conf_value_format(key_of(values[at].key), &second, again, sizeof again);
        cr_expect_str_eq(again, text);
        cr_expect_arr_eq(&first, &second, sizeof first, "%s = %s", values[at].key, text);
    }
}

Test(conf_value, a_text_has_an_end)
{
    static conf_t conf;
    hx_fault_t fault;
    char text[CONF_TEXT_MAX + 1];
    memset(text, 'a', sizeof text);
    text[CONF_TEXT_MAX] = '\0';
    cr_expect_eq(parse("train.data", text, &conf, &fault), HX_E_ARG);
    text[CONF_TEXT_MAX - 1] = '\0';
    cr_expect_eq(parse("train.data", text, &conf, &fault), HX_OK, "%s", fault.text);
    cr_expect_str_eq(conf.train.data, text);
}
