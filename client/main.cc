// `telar`: parses the command line and runs one command. The one file that includes CLI11, which is slow to compile.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <thread>

#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/synchronization/mutex.h"
#include "client/commands/ckpt.h"
#include "client/commands/commands.h"
#include "client/commands/contexts.h"
#include "client/commands/credentials.h"
#include "client/commands/data.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/commands/screen.h"
#include "client/commands/token.h"
#include "common/process.h"

namespace telar::client {
namespace {

// Everything that the parser fills in; outlives it.
struct CommandLine {
  Options options;
  SubmitOptions submit_options;
  PlanOptions plan_options;
  ListOptions list_options;
  WatchOptions watch_options;
  LogsOptions logs_options;
  CancelOptions cancel_options;
  ReleaseOptions release_options;
  CkptConvertOptions ckpt_convert_options;
  DataPrepareOptions data_prepare_options;
  DataOptions data_check_options, data_stats_options;
  DataPeekOptions data_peek_options;
  std::string checkpoint, other_checkpoint;
  CkptRmOptions ckpt_rm_options;
  TraceOptions trace_options;
  UpdateOptions update_options;
  NodeOptions node_options;
  std::string described_job;
  std::string explained;
  std::string shell;
  bool client_only = false;
  std::function<int(Context&)> command;
  bool needs_coordinator = true;
  std::string context;
  CLI::Option *coordinator_option = nullptr, *tls_ca_option = nullptr, *token_file_option = nullptr;
  CLI::Option* project_option = nullptr;
  TokenNewOptions token_new_options;
};

CLI::Option* add_duration(CLI::App& app, const std::string& name, std::optional<Milliseconds>& value,
                          const std::string& help) {
  const auto parse = [&value, name](const std::string& text) {
    value = parse_duration(text);
    if (!value) throw CLI::ValidationError(name, "got '" + text + "', want a time like 90s, 5m, 2h or 250ms");
  };
  return app.add_option_function<std::string>(name, parse, help)->type_name("TIME");
}

void add_globals(CLI::App& app, CommandLine& line) {
  Options& options = line.options;
  static const std::map<std::string, Output> kOutputs = {{"table", Output::kTable},
                                                         {"wide", Output::kWide},
                                                         {"json", Output::kJson},
                                                         {"yaml", Output::kYaml},
                                                         {"name", Output::kName}};
  line.coordinator_option = app.add_option("--coordinator", options.coordinator,
                                           "Address of the coordinator, or of several with commas between")
                                ->envname("TELAR_COORDINATOR")
                                ->type_name("HOST:PORT")
                                ->capture_default_str();
  line.tls_ca_option =
      app.add_option("--tls-ca", options.tls.ca, "Who signed the coordinator's certificate; turns TLS on")
          ->envname("TELAR_TLS_CA")
          ->type_name("FILE");
  line.token_file_option = app.add_option("--token-file", options.token_file, "Your token; TELAR_TOKEN goes first")
                               ->envname("TELAR_TOKEN_FILE")
                               ->type_name("FILE");
  line.project_option =
      app.add_option("--project", options.project, "Whose jobs: submitted there (default: default), listed")
          ->envname("TELAR_PROJECT")
          ->type_name("NAME");
  app.add_option("--context", line.context, "Where these four come from, of the contexts file; default: its current")
      ->envname("TELAR_CONTEXT")
      ->type_name("NAME");
  const auto parse = [&options](const std::string& text) {
    const auto found = kOutputs.find(text);
    if (found == kOutputs.end()) {
      throw CLI::ValidationError("--output", "got '" + text + "', want table, wide, json, yaml or name");
    }
    options.output = found->second;
  };
  app.add_option_function<std::string>("-o,--output", parse, "table, wide, json, yaml or name")->type_name("FORMAT");
  app.add_flag("--no-headers", options.no_headers, "No header line above a table");
  add_duration(app, "--timeout", options.timeout,
               "Longest wait for an answer (default 10s); of a stream, longest time without contact (default 60s)");
}

void add_submit(CLI::App& app, CommandLine& line) {
  SubmitOptions* options = &line.submit_options;
  CLI::App* command = app.add_subcommand("submit", "Submit a job from a spec; prints its id");
  command->add_option("file", options->file, "Spec in YAML, JSON or textproto; - reads standard input")->required();
  command->add_flag("--dry-run", options->dry_run,
                    "Only check the spec; prints it complete, and where it would run or why it would wait");
  auto* watching = command->add_flag("--watch", options->watch, "Follow the job to its end");
  command->add_flag("--wait", options->wait, "Wait for its end without progress")->excludes(watching);
  command->add_option("--name", options->name, "Label of the job, in place of the spec's name");
  command->add_option("--set", options->sets, "Replace one field of the spec; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  add_duration(*command, "--wait-timeout", options->wait_timeout, "Stop waiting after this; the job goes on");
  command->add_option("--request-id", options->request_id, "Sent again with the same text it is the same job still")
      ->type_name("TEXT");
  command->callback(
      [&line, options] { line.command = [options](Context& context) { return submit(context, *options); }; });
}

void add_plan(CLI::App& app, CommandLine& line) {
  PlanOptions* options = &line.plan_options;
  CLI::App* command = app.add_subcommand(
      "plan", "Forecast memory, time and cost of a job before it runs; with `parallel: auto` find its layout");
  command->add_option("file", options->file, "Spec in YAML, JSON or textproto; - reads standard input")->required();
  command->add_option("--cluster", options->cluster, "What it would run on: nodes, devices, gpu or rates")
      ->type_name("FILE");
  command->add_option("--nodes", options->nodes, "So many nodes; default: as many as the job wants");
  command->add_option("--devices-per-node", options->devices_per_node, "Default 8");
  command->add_option("--gpu", options->gpu, "Whose rates: h200 or cpu");
  command->add_option("--set", options->sets, "Replace one field of the spec; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  command->callback([&line, options] {
    line.needs_coordinator = false;
    line.command = [options](Context& context) { return plan(context, *options); };
  });
}

void add_reading(CLI::App& app, CommandLine& line) {
  ListOptions* options = &line.list_options;
  CLI::App* command = app.add_subcommand("list", "List jobs, newest first");
  command->add_option("--state", options->states, "Only jobs in this state; may be repeated")->allow_extra_args(false);
  command->callback(
      [&line, options] { line.command = [options](Context& context) { return list(context, *options); }; });

  std::string* job = &line.described_job;
  command = app.add_subcommand("describe", "Show one job");
  command->add_option("job", *job, "Id, full name, or label")->required();
  command->callback([&line, job] { line.command = [job](Context& context) { return describe(context, *job); }; });

  command = app.add_subcommand("queues", "List queues: what they may have, hold and want");
  command->callback([&line] { line.command = queues; });

  bool* client_only = &line.client_only;
  command = app.add_subcommand("version", "Show the version of this program and of the coordinator");
  command->add_flag("--client", *client_only, "Do not ask the coordinator");
  command->callback([&line, client_only] {
    line.needs_coordinator = !*client_only;
    line.command = [client_only](Context& context) { return version(context, *client_only); };
  });

  std::string* subject = &line.explained;
  command = app.add_subcommand("explain", "Show why a job waits, or what a field of the spec means");
  command->add_option("subject", *subject,
                      "Id, full name or label of a job; or a path, as model.heads; none: the spec");
  command->callback([&line, subject] {
    line.needs_coordinator = !names_field(*subject);
    line.command = [subject](Context& context) { return explain(context, *subject); };
  });
}

void add_following(CLI::App& app, CommandLine& line) {
  WatchOptions* watching = &line.watch_options;
  CLI::App* command = app.add_subcommand("watch", "Follow a job to its end; Ctrl-C detaches, the job goes on");
  command->add_option("job", watching->job, "Id, full name, or label; none: all that live, in a table");
  add_duration(*command, "--wait-timeout", watching->wait_timeout, "Stop watching after this; the job goes on");
  command->callback(
      [&line, watching] { line.command = [watching](Context& context) { return watch(context, *watching); }; });

  LogsOptions* log = &line.logs_options;
  command = app.add_subcommand("logs", "Print the log of one rank");
  command->add_option("job", log->job, "Id, full name, or label")->required();
  command->add_flag("-f,--follow", log->follow, "Go on until the job ends");
  command->add_option("--rank", log->rank, "Which rank")->capture_default_str();
  command->add_option("--epoch", log->epoch, "Only this allocation epoch; default: all in turn");
  command->add_option("--offset", log->offset, "First byte");
  command->callback([&line, log] { line.command = [log](Context& context) { return logs(context, *log); }; });

  CancelOptions* ending = &line.cancel_options;
  command = app.add_subcommand("cancel", "End a job");
  command->add_option("job", ending->job, "Id, full name, or label")->required();
  auto* waiting = command->add_flag("--wait", ending->wait, "Wait until every process of it is gone");
  add_duration(*command, "--wait-timeout", ending->wait_timeout, "Stop waiting after this");
  auto* etag = command->add_option("--etag", ending->etag, "Only if this is the job's etag still");
  command->add_flag("--array", ending->array, "End every task of the array that it is a task of")
      ->excludes(waiting)
      ->excludes(etag);
  command->callback(
      [&line, ending] { line.command = [ending](Context& context) { return cancel(context, *ending); }; });
}

void add_nodes(CLI::App& app, CommandLine& line) {
  NodeOptions* options = &line.node_options;
  CLI::App* group = app.add_subcommand("nodes", "List nodes and their devices; close them and open them again");
  group->require_subcommand(0, 1);
  group->fallthrough();
  const auto add = [&](const char* name, const char* help, int (*run)(Context&, const NodeOptions&)) {
    CLI::App* command = group->add_subcommand(name, help);
    command->add_option("node", options->node, "Its name")->required();
    command->callback(
        [&line, options, run] { line.command = [options, run](Context& context) { return run(context, *options); }; });
    return command;
  };
  add("cordon", "Give nothing new to a node", cordon_node)
      ->add_option("--reason", options->reason, "For others to read");
  add("uncordon", "Open a node again", uncordon_node);
  add("drain", "Cordon a node; what runs there saves and moves away", drain_node)
      ->add_option("--reason", options->reason, "For others to read");
  ReleaseOptions* releasing = &line.release_options;
  CLI::App* release = group->add_subcommand("release", "Give a device back that is in quarantine");
  release->add_option("node", releasing->node, "Its node")->required();
  release->add_option("device", releasing->device, "KIND:INDEX, as gpu:3")->required();
  release->callback([&line, releasing] {
    line.command = [releasing](Context& context) { return release_device(context, *releasing); };
  });
  group->callback([&line, group] {
    if (group->get_subcommands().empty()) line.command = nodes;
  });
}

void add_update(CLI::App& app, CommandLine& line) {
  UpdateOptions* options = &line.update_options;
  CLI::App* command = app.add_subcommand("update", "Change how a job is scheduled");
  command->add_option("job", options->job, "Id, full name, or label")->required();
  command->add_option("--queue", options->queue, "Queue to wait in");
  command->add_option("--priority", options->priority, "Within the queue, -1000 to 1000");
  command->add_option("--preemptible", options->preemptible, "Whether it may be ended for others: true or false");
  command
      ->add_option_function<std::string>(
          "--time-limit",
          [options](const std::string& text) {
            options->time_limit = text == "0" ? std::optional<Milliseconds>(0) : parse_duration(text);
            if (!options->time_limit) {
              throw CLI::ValidationError("--time-limit", "got '" + text + "', want a time like 90s, 5m or 2h, or 0");
            }
          },
          "Running time after which it saves and ends; 0: none")
      ->type_name("TIME");
  command->add_option("--etag", options->etag, "Only if this is the job's etag still");
  command->callback(
      [&line, options] { line.command = [options](Context& context) { return update(context, *options); }; });
}

void add_tokenizer(CLI::App& command, TokenizerOptions& options) {
  command.add_option("--tokenizer", options.tokenizer, "Its file, or byte")->type_name("FILE");
  command.add_option("--tokenizer-kind", options.kind, "hugging_face, tiktoken or sentencepiece; default: by the name");
  command.add_option("--pattern", options.pattern,
                     "How tiktoken cuts words: gpt2, cl100k, o200k, llama3, or a pattern");
}

void add_data_prepare(CLI::App& data, CommandLine& line) {
  DataPrepareOptions* options = &line.data_prepare_options;
  CLI::App* command = data.add_subcommand("prepare", "Turn text or JSONL into shards of token ids; goes on if killed");
  command->add_option("input", options->inputs, "Files, globs, or - ; .gz and .zst are unpacked")->required();
  command->add_option("--out", options->out, "Directory to write")->required()->type_name("DIR");
  add_tokenizer(*command, options->tokenizer);
  command->add_option("--end-of-document", options->tokenizer.end_of_document, "Token behind each document, as text");
  command->add_option("--format", options->format, "prepared, megatron or llmc")->capture_default_str();
  command->add_option("--input", options->input, "What files are: auto (by name), text, jsonl")->capture_default_str();
  command->add_option("--field", options->field, "Where JSONL has the text")->capture_default_str();
  auto* cut = command->add_option("--documents", options->documents, "A text's documents: file or paragraphs");
  command->add_option("--separator", options->separator, "A line that ends a document of a text")->excludes(cut);
  command->add_option("--threads", options->threads, "That tokenize; default: one a core");
  command->add_option("--shard-tokens", options->shard_tokens, "Most tokens of a shard; default 100000000");
  command->add_option("--on-error", options->on_error, "At a faulty document: stop or skip")->capture_default_str();
  command->add_option("--max-documents", options->max_documents, "Stop behind so many");
  command->callback(
      [&line, options] { line.command = [options](Context& context) { return data_prepare(context, *options); }; });
}

void add_data_options(CLI::App& command, DataOptions& options) {
  command.add_option("path", options.paths, "Prepared dataset, or .bin files of Megatron or llm.c")->required();
  add_tokenizer(command, options.tokenizer);
  command.add_option("--vocab", options.vocabulary, "Ids have to be below this, where the data does not tell");
  command.add_option("--end-of-document-id", options.end_of_document, "Id behind documents, where it does not tell");
}

void add_data(CLI::App& app, CommandLine& line) {
  CLI::App* data = app.add_subcommand("data", "Prepare training data, check it, look at it; on this machine");
  data->require_subcommand(1);
  data->callback([&line] { line.needs_coordinator = false; });
  add_data_prepare(*data, line);
  DataOptions* checking = &line.data_check_options;
  CLI::App* command = data->add_subcommand("check", "Read all of it; says what is wrong first, and where");
  add_data_options(*command, *checking);
  command->callback(
      [&line, checking] { line.command = [checking](Context& context) { return data_check(context, *checking); }; });
  DataPeekOptions* peeking = &line.data_peek_options;
  command = data->add_subcommand("peek", "Show some tokens, as text where the tokenizer is known");
  add_data_options(*command, peeking->data);
  auto* document = command->add_option("--document", peeking->document, "From the start of this document, from 0");
  command->add_option("--position", peeking->position, "From this token on, from 0")->excludes(document);
  command->add_option("--tokens", peeking->tokens, "How many")->capture_default_str();
  command->callback(
      [&line, peeking] { line.command = [peeking](Context& context) { return data_peek(context, *peeking); }; });
  DataOptions* measuring = &line.data_stats_options;
  command = data->add_subcommand("stats", "Count documents, tokens, lengths, and the most frequent ids");
  add_data_options(*command, *measuring);
  command->callback(
      [&line, measuring] { line.command = [measuring](Context& context) { return data_stats(context, *measuring); }; });
}

void add_ckpt_convert(CLI::App& group, CommandLine& line) {
  CkptConvertOptions* options = &line.ckpt_convert_options;
  CLI::App* command = group.add_subcommand(
      "convert",
      "Weights of other people into a checkpoint to start from, or a checkpoint into what other people read");
  command->add_option("from", options->from, "Checkpoint, Hugging Face directory, or llm.c .bin file")->required();
  command->add_option("to", options->to, "Directory, or for llm.c file, to write; must not be there");
  command->add_option("--to", options->to_format, "hf, llmc or telar; default: hf of a checkpoint, else telar")
      ->type_name("FORMAT");
  command->add_option("--dtype", options->dtype, "f32, bf16 or f16; default: as stored, or as the run computed")
      ->type_name("TYPE");
  command->add_option("--shard-size", options->shard_bytes, "Most bytes in one file of an hf directory (default 5GB)")
      ->transform(CLI::AsSizeValue(true))
      ->type_name("BYTES");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json to copy along; default: the one that is known")
      ->type_name("FILE");
  command->add_flag("--print-model", options->print_model, "Only print the model as a part of a job's spec");
  command->callback([&line, options] {
    line.needs_coordinator = false;
    line.command = [options](Context& context) { return ckpt_convert(context, *options); };
  });
}

constexpr const char* kCheckpointHelp =
    "A checkpoint's directory, or RUN@STEP or RUN@latest, where RUN is a run directory or a job";

void add_ckpt(CLI::App& app, CommandLine& line) {
  CLI::App* group = app.add_subcommand("ckpt", "Look after checkpoints; works on files of this machine");
  group->require_subcommand(1);
  group->fallthrough();
  std::string *checkpoint = &line.checkpoint, *other = &line.other_checkpoint;
  CkptRmOptions* removing = &line.ckpt_rm_options;
  const auto add = [&](const char* name, const char* help, std::function<int(Context&)> run) {
    CLI::App* command = group->add_subcommand(name, help);
    command->callback([&line, run = std::move(run)] { line.command = run; });
    return command;
  };
  CLI::App* command =
      add("ls", "List the checkpoints of a run", [=](Context& context) { return ckpt_ls(context, *checkpoint); });
  command->add_option("run", *checkpoint, "A run directory, its ckpt, or a job")->required();

  command = add("show", "Show one checkpoint", [=](Context& context) { return ckpt_show(context, *checkpoint); });
  command->add_option("checkpoint", *checkpoint, std::string(kCheckpointHelp) + "; a run: its newest")->required();

  command = add("verify", "Read a checkpoint, or all of a run, and compare every checksum",
                [=](Context& context) { return ckpt_verify(context, *checkpoint); });
  command->add_option("checkpoint", *checkpoint, std::string(kCheckpointHelp) + "; a run: all")->required();

  command = add("diff", "Compare two checkpoints, of whatever layouts; exit code 1 when they differ",
                [=](Context& context) { return ckpt_diff(context, *checkpoint, *other); });
  command->add_option("a", *checkpoint, std::string(kCheckpointHelp) + "; a run: its newest")->required();
  command->add_option("b", *other, "The other one")->required();

  command = add("rm", "Remove a checkpoint", [=](Context& context) { return ckpt_rm(context, *removing); });
  command->add_option("checkpoint", removing->checkpoint, kCheckpointHelp)->required();
  command->add_flag("--force", removing->force, "Even if it is pinned, or the only good one");

  command = add("pin", "Keep a checkpoint whatever the job's checkpoint.keep says",
                [=](Context& context) { return ckpt_pin(context, *checkpoint, true); });
  command->add_option("checkpoint", *checkpoint, kCheckpointHelp)->required();
  command = add("unpin", "Take a pin away", [=](Context& context) { return ckpt_pin(context, *checkpoint, false); });
  command->add_option("checkpoint", *checkpoint, kCheckpointHelp)->required();
  add_ckpt_convert(*group, line);
}

void add_trace(CLI::App& app, CommandLine& line) {
  TraceOptions* options = &line.trace_options;
  CLI::App* command = app.add_subcommand(
      "trace", "Have a job's ranks time a step op by op; one file for Perfetto, and where the time went");
  command
      ->add_option(
          "of", options->of,
          "Id, full name or label of a job; or trace-<step>.json of a rank, or a folder with such at any depth")
      ->required();
  command->add_option("--step", options->step, "A step to come, next, or one that is there")->type_name("N");
  command->add_option("--steps", options->steps, "So many in a row")->capture_default_str();
  command->add_option("--to", options->to, "The file; default: of a job trace-<id>-<step>.json, else none")
      ->type_name("FILE");
  add_duration(*command, "--wait-timeout", options->wait_timeout, "Stop waiting after this; the ranks go on");
  command->callback([&line, options] {
    line.needs_coordinator = !names_files(options->of);
    line.command = [options](Context& context) { return trace(context, *options); };
  });
}

void add_token(CLI::App& app, CommandLine& line) {
  TokenNewOptions* options = &line.token_new_options;
  CLI::App* group = app.add_subcommand("token", "Tokens by which people are known to the coordinator");
  group->require_subcommand(1);
  CLI::App* command =
      group->add_subcommand("new", "Print a new token, and its line for the coordinator's --tokens file");
  command->add_option("--user", options->user, "Whose it is")->required();
  command->add_option("--role", options->roles, "viewer, submitter, operator or admin, of a project or of * for all")
      ->required()
      ->type_name("PROJECT=ROLE")
      ->allow_extra_args(false);
  command->add_option("--days", options->days, "Until it expires; 0: never")
      ->check(CLI::Range(0, 36500))
      ->capture_default_str();
  command->callback([&line, options] {
    line.needs_coordinator = false;
    line.command = [options](Context& context) { return token_new(context, *options); };
  });
}

// The words that may follow, taken from the parser itself: subcommands first, then the options of the one chosen.
std::string bash_completion(const CLI::App& app) {
  const auto every = [](const CLI::App*) { return true; };
  const std::function<std::string(const CLI::App&)> words = [&](const CLI::App& of) {
    std::string all;
    // The commands below this one, and what they take.
    for (const CLI::App* command :
         of.get_parent() == nullptr ? std::vector<const CLI::App*>{} : of.get_subcommands(every)) {
      all += command->get_name() + " " + words(*command);
    }
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) all += "--" + name + " ";
      for (const std::string& name : option->get_snames()) all += "-" + name + " ";
    }
    return all;
  };
  std::string names, cases;
  for (const CLI::App* command : app.get_subcommands(every)) {
    names += command->get_name() + " ";
    cases += "      " + command->get_name() + ") words=\"" + words(*command) + words(app) + "\"; break ;;\n";
  }
  return "_telar() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" word words=\"" +
         names + words(app) +
         "\"\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case \"$word\" in\n" +
         cases +
         "    esac\n"
         "  done\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "}\n"
         "complete -o filenames -F _telar telar\n";
}

void add_completion(CLI::App& app, CommandLine& line) {
  std::string* shell = &line.shell;
  CLI::App* command = app.add_subcommand("completion", "Print a completion script: source <(telar completion bash)");
  command->add_option("shell", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  command->callback([&app, &line, shell] {
    line.needs_coordinator = false;
    line.command = [&app, shell](Context& context) {
      if (*shell == "zsh") context.out() << "autoload -U +X bashcompinit && bashcompinit\n";
      context.out() << bash_completion(app);
      return static_cast<int>(kOk);
    };
  });
}

// The first Ctrl-C detaches a command that waits; any other signal ends the program at once, as by default.
// Signals that the parent ignores (nohup, background jobs of a script) stay ignored.
void handle_signals(Interrupt& interrupt) {
  std::set<int> ignored = {SIGUSR1};
  for (const int signal : {SIGINT, SIGHUP, SIGTERM}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) ignored.insert(signal);
  }
  block_signals();
  std::thread([&interrupt, ignored] {
    for (;;) {
      const int signal = wait_for_signal();
      if (ignored.contains(signal)) continue;
      if (signal == SIGINT && interrupt.trigger()) continue;
      Screen::restore();
      _exit(128 + signal);
    }
  }).detach();
}

int terminal_width() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

int terminal_height() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

// By the first of the variables that name a locale's characters, as POSIX orders them.
bool locale_is_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    const std::string name = absl::AsciiStrToUpper(value);
    return name.find("UTF-8") != std::string::npos || name.find("UTF8") != std::string::npos;
  }
  return false;
}

absl::Status connect(CommandLine& line, Context& context) {
  const GivenOptions given{line.coordinator_option->count() > 0, line.tls_ca_option->count() > 0,
                           line.token_file_option->count() > 0, line.project_option->count() > 0};
  absl::Status status = apply_context(contexts_path(), line.context, given, context.options);
  if (!status.ok()) return status;
  const auto token = find_token(context.options);
  if (!token.ok()) return token.status();
  const auto channel = open_channel(context.options, *token);
  if (!channel.ok()) return channel.status();
  context.jobs = v1::Jobs::NewStub(*channel);
  context.nodes = v1::Nodes::NewStub(*channel);
  if (*token != nullptr) context.renew_token = [source = *token] { return source->renew(); };
  return absl::OkStatus();
}

int run(CommandLine& line, Interrupt& interrupt) {
  const bool live = isatty(STDERR_FILENO) == 1;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal_type = std::getenv("TERM");
  const bool dumb = terminal_type == nullptr || std::string(terminal_type) == "dumb";
  const bool colour = live && !dumb && (no_colour == nullptr || *no_colour == '\0');
  const RealClock clock;
  const Terminal terminal{.in = std::cin,
                          .out = std::cout,
                          .err = std::cerr,
                          .live = live && !dumb,
                          .colour = colour,
                          .width = terminal_width,
                          .height = terminal_height,
                          .unicode = locale_is_utf8()};
  Context context{line.options, terminal, clock, interrupt, nullptr};
  if (line.needs_coordinator) {
    if (const absl::Status status = connect(line, context); !status.ok()) return report(context, status);
  }
  const int code = line.command(context);
  std::cout.flush();
  return code;
}

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  setenv("GRPC_VERBOSITY", "NONE", 0);           // Its errors come back as a status, and we say them in one line.
  static Interrupt& interrupt = *new Interrupt;  // The signal thread outlives main.
  handle_signals(interrupt);
  CommandLine line;
  CLI::App app("telar: train transformer language models on a cluster", "telar");
  app.fallthrough();  // Global options are taken behind the subcommand too.
  app.footer(kExitCodeHelp);
  add_globals(app, line);
  add_submit(app, line);
  add_plan(app, line);
  add_reading(app, line);
  add_following(app, line);
  add_nodes(app, line);
  add_update(app, line);
  add_ckpt(app, line);
  add_data(app, line);
  add_trace(app, line);
  add_token(app, line);
  add_completion(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return kOk;
  } catch (const CLI::ParseError& failure) {
    std::cerr << "error: " << failure.what() << "; see telar --help\n";
    return kUsage;
  }
  if (!line.command) {
    std::cerr << app.help();
    return kUsage;
  }
  return run(line, interrupt);
}

}  // namespace
}  // namespace telar::client

int main(int argc, char** argv) { return telar::client::main(argc, argv); }
