// zpl: strict reading of ZPL, every refusal with its line.

#include "net/zpl.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static hx_err_t read_text(const char *text, zpl_t *zpl, hx_fault_t *fault)
{
    return zpl_read("t.conf", text, strlen(text), zpl, fault);
}

Test(zpl, gives_items_in_order_with_level_and_line)
{
    zpl_t zpl;
    hx_fault_t fault;
    const char *const text = "# a comment\n"
                             "run\n"
                             "    name = \"a # b\"   # note\n"
                             "\n"
                             "    seed = 7  # note\n"
                             "launch\r\n"
                             "    site\r\n"
                             "        name = 'e \"a\" st'\r\n"
                             "    empty = \"\"";
    cr_assert_eq(read_text(text, &zpl, &fault), HX_OK, "%s", fault.text);
    static const struct {
        const char *name, *value;
        uint32_t level, line;
        bool section;
    } expected[] = {
        {"run", "", 0, 2, true},    {"name", "a # b", 1, 3, false},
        {"seed", "7", 1, 5, false}, {"launch", "", 0, 6, true},
        {"site", "", 1, 7, true},   {"name", "e \"a\" st", 2, 8, false},
        {"empty", "", 1, 9, false},
    };
    cr_assert_eq(zpl.items_count, HX_COUNT(expected));
    for (size_t at = 0; at < HX_COUNT(expected); at++) {
        cr_expect_str_eq(zpl.items[at].name, expected[at].name);
        cr_expect_str_eq(zpl.items[at].value, expected[at].value);
        cr_expect_eq(zpl.items[at].level, expected[at].level);
        cr_expect_eq(zpl.items[at].line, expected[at].line);
        cr_expect_eq(zpl.items[at].section, expected[at].section);
    }
    zpl_destroy(&zpl);
    cr_expect_null(zpl.items);
}

Test(zpl, an_empty_text_has_no_items)
{
    zpl_t zpl;
    hx_fault_t fault;
    cr_expect_eq(zpl_read("t.conf", "", 0, &zpl, &fault), HX_OK);
    cr_expect_eq(zpl.items_count, 0);
    cr_expect_eq(read_text("# only\n\n   \n", &zpl, &fault), HX_OK);
    cr_expect_eq(zpl.items_count, 0);
}

Test(zpl, a_comment_may_stand_anywhere)
{
    zpl_t zpl;
    hx_fault_t fault = {0};
    cr_assert_eq(read_text("  # two blanks\na\n     # five\n    b = 1\n   \n # one", &zpl, &fault),
                 HX_OK, "%s", fault.text);
    cr_expect_eq(zpl.items_count, 2);
    zpl_destroy(&zpl);
}

Test(zpl, refuses_what_zconfig_would_misread_and_names_the_line)
{
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"a\n\tb = 1\n", "t.conf:2: a tab"},
        {"a\n  b = 1\n", "t.conf:2: indented by 2 blanks"},
        {"a\n        b = 1\n", "t.conf:2: indented deeper"},
        {"    a = 1\n", "t.conf:1: indented deeper"},
        {"a = 1\n    b = 2\n", "t.conf:2: indented below a key"},
        {"a\n    b =\n", "t.conf:2: the value is missing"},
        {"a\n    b = # c\n", "t.conf:2: the value is missing"},
        {"a\n    b = x#y\n", "t.conf:2: '#' inside"},
        {"a\n    b = 1 = 2\n", "t.conf:2: '=' or a quote"},
        {"a\n    b = x \"y\"\n", "t.conf:2: '=' or a quote"},
        {"a\n    b = \"x\n", "t.conf:2: the quote"},
        {"a\n    b = \"x\" y\n", "t.conf:2: only a comment"},
        {"a\n    b c\n", "t.conf:2: expected `key = value`"},
        {"a\n    = 1\n", "t.conf:2: expected a name"},
        {"a.b = 1\n", "t.conf:1: expected `key = value`"},
        {"\xef\xbb\xbf"
         "a\n",
         "t.conf:1: expected a name"},
        {"a\n\n\n    b = \x01\n", "t.conf:4: a control character"},
    };
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        zpl_t zpl = {0};
        hx_fault_t fault = {0};
        cr_expect_eq(read_text(bad[at].text, &zpl, &fault), HX_E_FORMAT, "accepted: %s",
                     bad[at].text);
        cr_expect(strstr(fault.text, bad[at].says), "\"%s\" does not say \"%s\"", fault.text,
                  bad[at].says);
        cr_expect_null(zpl.items, "nothing is given on failure");
    }
}

Test(zpl, refuses_nul_bytes_long_lines_and_depth)
{
    zpl_t zpl;
    hx_fault_t fault;
    cr_expect_eq(zpl_read("t.conf", "a\n    b = 1\0002\n", 14, &zpl, &fault), HX_E_FORMAT);
    cr_expect(strstr(fault.text, "byte 0"), "%s", fault.text);

    char text[ZPL_LINE_MAX + 16];
    memset(text, '#', sizeof text);
    text[ZPL_LINE_MAX] = '\0';
    cr_expect_eq(read_text(text, &zpl, &fault), HX_OK, "%s", fault.text);
    text[ZPL_LINE_MAX] = '#';
    text[ZPL_LINE_MAX + 1] = '\0';
    cr_expect_eq(read_text(text, &zpl, &fault), HX_E_FORMAT);

    char deep[1024];
    size_t used = 0;
    for (int level = 0; level <= ZPL_LEVELS_MAX; level++) {
        used += (size_t)snprintf(deep + used, sizeof deep - used, "%*sa\n", level * 4, "");
    }
    cr_expect_eq(read_text(deep, &zpl, &fault), HX_E_FORMAT);
    cr_expect(strstr(fault.text, "t.conf:9: indented too deep"), "%s", fault.text);
}
