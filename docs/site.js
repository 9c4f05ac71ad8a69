// The menu is longer than a screen: scroll it to the page that is open.
document.addEventListener("DOMContentLoaded", () => {
  const menu = document.querySelector(".sidebar-scroll");
  const here = document.querySelector(".sidebar-tree .current-page");
  if (menu && here) {
    const below = here.getBoundingClientRect().top - menu.getBoundingClientRect().top;
    if (below > menu.clientHeight - 80) menu.scrollTop += below - menu.clientHeight / 2;
  }
});
// The search splits words at "&": look for the package of that name instead.
if (document.querySelector("#search-results")) {
  const address = new URL(location.href);
  const asked = address.searchParams.get("q") ?? "";
  const named = asked.replace(/\bw&b\b/gi, "wandb");
  if (named !== asked) {
    address.searchParams.set("q", named);
    location.replace(address);
  }
}
